// The threads of the host backend: a pool that sleeps between passes and hands out tiles in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/float_modes.hpp"
#include "slamb/core/detail/process.hpp"

namespace slamb::detail::host {

/// Runs loops on the calling thread and `threads − 1` others, one loop at a time, all in the float_modes of the calling thread. A
/// body that throws ends the program by `std::terminate`. In a process that is forked from its own, the pool has no threads, and can
/// neither run loops nor be destroyed.
class thread_pool : public bound_to_process {
 public:
  /// @throws std::system_error if a thread cannot be started.
  explicit thread_pool(unsigned threads);

  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() { stop(); }

  /// Calls body(i) for first ≤ i < last, `grain` neighbours at a time on one thread; returns when all are done.
  template <class Body>
  void for_each(std::size_t first, std::size_t last, std::size_t grain, const Body& body) {
    run({first, last, grain, [](const void* context, std::size_t i) { (*static_cast<const Body*>(context))(i); },
         &body});
  }

 private:
  // A loop with a type-erased body, so that all loops share this code.
  struct loop {
    std::size_t first, last, grain;
    void (*body)(const void* context, std::size_t i);
    const void* context;
  };

  void run(const loop& all);

  static void run_on_caller(const loop& all) noexcept;

  void take(const loop& all) noexcept;

  void start(const loop& all);

  // Waits for the other threads: spins for a short time, then sleeps.
  void finish();

  void serve();

  // Waits without sleeping: passes follow each other within microseconds, and waking a sleeping thread takes longer.
  template <class Condition>
  static bool spin(const Condition& holds) {
    for (int i = 0; i < 2000; ++i) {
      if (holds()) return true;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
    return false;
  }

  void stop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> busy_{0};
  std::atomic<std::uint64_t> loops_{0};  // number of loops begun
  const loop* loop_ = nullptr;           // the running loop
  float_modes modes_;                    // of its caller
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace slamb::detail::host

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/backend/host/detail/thread_pool.ipp"
#endif
