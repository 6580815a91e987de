// The CUDA backend without a GPU: the CPU runs its kernels thread by thread. For tests of kernels and of policies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/stream_launcher.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/kernel/launcher.hpp"

namespace slamb {

/// Settings of the emulated backend. It uses host memory and the communicators for host memory.
///
/// *Cost*: about a hundred times the time of the host backend.
/// *Determinism*: the same bits for every grid and every order of threads.
struct emulated_backend {
  std::size_t most_blocks = 5;           ///< the most blocks of a grid: a GPU, too, has such a limit
  detail::cuda::thread_order order{};    ///< the order in which the threads of a block run between two barriers
  std::size_t cache_bytes = 16U << 20U;  ///< as host_backend::cache_bytes
  allocator memory = detail::host_allocator();

  using stream_type = host_stream;
  using launcher_type = detail::cuda::stream_launcher<detail::cuda::emulator>;

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(most_blocks >= 1, "emulated_backend's most_blocks", static_cast<double>(most_blocks), ">= 1");
  }

  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return launcher_type(detail::cuda::emulator(most_blocks, order));
  }
};

static_assert(backend<emulated_backend> && detail::backend_launcher<emulated_backend::launcher_type>);

}  // namespace slamb
