// The host backend: its settings, from which a recipe makes its launcher.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "slamb/backend/host/detail/thread_launcher.hpp"
#include "slamb/core/allocator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/kernel/launcher.hpp"
#include "slamb/detail/kernel/machine_on.hpp"

namespace slamb {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Settings of the host backend: parameters, gradients and state in host memory, passes on threads with explicit SIMD.
///
/// *Determinism*: the same bits from run to run, for every number of threads. All threads compute in the modes of the calling
/// thread, so also if that treats subnormal numbers as 0 (on x86-64 and 64-bit ARM).
struct host_backend {
  unsigned threads = 0;                  ///< with the calling thread; 0: one for each core; 1: the calling thread alone
  std::size_t cache_bytes = 16U << 20U;  ///< size of a batch of tensors, so that a second pass finds it in the cache
  allocator memory = detail::host_allocator();

  using stream_type = host_stream;
  using launcher_type = detail::host::thread_launcher;

  /// @throws std::invalid_argument
  void validate() const { detail::require_in(threads <= 4096, "host_backend's threads", threads, "in [0, 4096]"); }

  launcher_type make_launcher(std::uint64_t elements) const {
    return {threads == 0 ? std::max(1U, std::thread::hardware_concurrency()) : threads, elements};
  }
};

static_assert(backend<host_backend> && detail::backend_launcher<host_backend::launcher_type>);

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb

#if defined(SLAMB_SEPARATE_COMPILATION) && !defined(SLAMB_DEVICE_COMPILER)
namespace slamb::detail {
extern template class machine_on<host_backend>;
}
#endif
