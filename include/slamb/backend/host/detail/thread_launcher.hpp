// The launcher of the host: runs kernels on threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "slamb/backend/host/detail/thread_pool.hpp"
#include "slamb/backend/host/detail/worker.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/process.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/launcher.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Runs kernels. All work is done when a call returns.
class thread_launcher : public launches_at_once {
 public:
  /// @param threads   including the calling thread
  /// @param elements  elements of the model; a small model uses fewer threads
  thread_launcher(unsigned threads, std::uint64_t elements) {
    constexpr std::uint64_t worth_a_thread = 1U << 16U;
    const auto useful = static_cast<unsigned>(std::min<std::uint64_t>(threads, elements / worth_a_thread + 1));
    pool_.reset(new thread_pool(useful));
  }

  /// Runs a kernel: small ones on this thread, others with a team for each piece of work.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    if constexpr (is_small<Kernel>) {
      run_team(kernel, 0, 1);
    } else {
      constexpr std::size_t grain = 4;  // neighbours in memory, on one thread
      const std::size_t work = kernel.work();
      pool_->for_each(0, work, grain, [&kernel, work](std::size_t i) { run_team(kernel, i, work); });
    }
  }

  /// Calls each function, in order, after all earlier work.
  template <class... Functions>
  static void invoke(const Functions&... functions) {
    (functions(), ...);
  }

  /// Sets all bytes to 0.
  void clear(std::span<std::byte> memory) const {
    static constexpr std::size_t piece = std::size_t{1} << 20U;
    pool_->for_each(0, (memory.size() + piece - 1) / piece, 1, [memory](std::size_t i) {
      std::memset(memory.data() + i * piece, 0, std::min<std::size_t>(piece, memory.size() - i * piece));
    });
  }

 private:
  // Works with variables of its own: compilers keep them in registers, because no store through a pointer can change them. A
  // kernel that owns memory, as that of a user's policy may, is not copied.
  template <class Kernel>
  [[gnu::noinline]] SLAMB_FLATTEN static void run_team(const Kernel& kernel, std::size_t number, std::size_t teams) {
    using variables = std::conditional_t<std::is_trivially_copyable_v<Kernel>, const Kernel, const Kernel&>;
    variables own = kernel;
    worker team(number, teams);
    own(team);
  }

  std::unique_ptr<thread_pool, destroy_in_own_process> pool_;
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
