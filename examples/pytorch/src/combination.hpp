// The optimizers of which the module consists. Each is a type; the sources in recipes/ instantiate them.
#pragma once

#include <slamb/backend/host/host_backend.hpp>
#include <slamb/backend/precision.hpp>
#include <slamb/communicator/any_communicator.hpp>
#include <slamb/core/parameter.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <span>
#include <string_view>

#include "settings.hpp"

namespace binding {

/// Joins ranks by the collectives of any framework.
using rank_communicator = slamb::any_communicator<>;

/// The Backend of every optimizer. Parameters of 16 bits with a `parameter::master` are rounded to nearest from that copy, those
/// without by chance. On floats it has the bits of host_backend.
template <class Moments = slamb::precision::float_moments>
using host = slamb::precision::mixed<slamb::host_backend, slamb::precision::stochastic_rounding, Moments>;

/// Settings of a backend.
struct machine {
  unsigned threads = 0;
  std::uint64_t seed = 0;  ///< of rounding by chance
};

template <class Backend>
Backend backend_for(const machine& m) {
  return {{.threads = m.threads}, {.seed = m.seed}};
}

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
