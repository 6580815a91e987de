// The optimizers of which a module consists. Each is a type; the sources in recipes/ instantiate them, for the host or, with
// SLAMB_BINDING_CUDA, for a GPU.
#pragma once

#include <cstdint>
#include <slamb/communicator/any_communicator.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <span>
#include <string_view>

#include "settings.hpp"

#if defined(SLAMB_BINDING_CUDA)
#include <cuda_runtime_api.h>
#else
#include <slamb/core/concepts.hpp>
#endif

namespace binding {

#if defined(SLAMB_BINDING_CUDA)
using stream_type = cudaStream_t;
#else
using stream_type = slamb::host_stream;
#endif

/// Joins ranks by the collectives of any framework.
using rank_communicator = slamb::any_communicator<stream_type>;

/// Settings of a backend.
struct machine {
  unsigned threads = 0;    ///< of the host backend
  std::uint64_t seed = 0;  ///< of rounding by chance
  stream_type stream{};
};

/// Makes an optimizer over these tensors.
/// @throws std::invalid_argument for a setting that it does not have; the exceptions of the constructor
using maker = slamb::optimizer (*)(std::span<const slamb::parameter>, settings&, rank_communicator, const machine&);

/// A compressor and a storage of m and v, with which an optimizer can be made.
struct combination {
  std::string_view compressor;
  std::string_view moments;
  maker make;
};

std::span<const combination> adamw_combinations();
std::span<const combination> lamb_combinations();
std::span<const combination> slamb_combinations();
std::span<const combination> one_bit_adam_combinations();
std::span<const combination> one_bit_lamb_combinations();
std::span<const combination> zero_one_adam_combinations();
/// The mean of gradients over ranks, without an update.
std::span<const combination> mean_combinations();

}  // namespace binding
