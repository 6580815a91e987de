// The CUDA backend without a GPU: its kernels, run on the CPU thread by thread. For tests of kernels and of policies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/executor.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/pass/executor.hpp"

namespace slamb {

/// Settings of the emulated backend. Memory is the host's, and communicators are those of the host.
///
/// *Cost*: some hundred times that of the host backend.
/// *Determinism*: the same bits whatever the grid and the order of threads.
struct emulated_backend {
  std::size_t most_blocks = 5;           ///< of a grid, as a GPU has a number that it can hold
  detail::cuda::thread_order order{};    ///< in which the threads of a block run between two barriers
  std::size_t cache_bytes = 16U << 20U;  ///< tensors are walked in batches that fit, so that a second pass hits it
  allocator memory = detail::host_allocator();

  using stream_type = host_stream;
  using executor_type = detail::cuda::executor<detail::cuda::emulator>;

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(most_blocks >= 1, "emulated_backend's most_blocks", static_cast<double>(most_blocks), ">= 1");
  }

  executor_type make_executor(std::uint64_t /*elements*/) const {
    return executor_type(detail::cuda::emulator(most_blocks, order));
  }
};

static_assert(backend<emulated_backend> && detail::backend_executor<emulated_backend::executor_type>);

}  // namespace slamb
