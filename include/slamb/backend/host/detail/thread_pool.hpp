// The threads of the host backend: a pool that sleeps between passes and hands out tiles in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "slamb/core/detail/float_modes.hpp"
#include "slamb/core/detail/process.hpp"

namespace slamb::detail::host {

/// Runs loops on the calling thread and `threads − 1` others, one loop at a time, all in the float_modes of the calling thread. A
/// body that throws ends the program by `std::terminate`. In a process that is forked from its own, the pool has no threads, and can
/// neither run loops nor be destroyed.
class thread_pool : public bound_to_process {
 public:
  /// @throws std::system_error if a thread cannot be started.
  explicit thread_pool(unsigned threads) {
    try {
      for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
    } catch (...) {
      stop();
      throw;
    }
  }

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

  void run(const loop& all) {
    if (workers_.empty() || all.last - all.first <= all.grain) return run_on_caller(all);
    next_.store(all.first, std::memory_order_relaxed);
    start(all);
    take(all);
    finish();
  }

  static void run_on_caller(const loop& all) noexcept {
    for (std::size_t i = all.first; i < all.last; ++i) all.body(all.context, i);
  }

  void take(const loop& all) noexcept {
    for (;;) {
      const std::size_t begin = next_.fetch_add(all.grain, std::memory_order_relaxed);
      if (begin >= all.last) return;
      for (std::size_t i = begin; i < std::min(all.last, begin + all.grain); ++i) all.body(all.context, i);
    }
  }

  void start(const loop& all) {
    {
      const std::lock_guard lock(mutex_);
      loop_ = &all;
      modes_ = float_modes::current();
      busy_.store(workers_.size(), std::memory_order_relaxed);
      loops_.store(loops_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    wake_.notify_all();
  }

  // Waits for the other threads: spins for a short time, then sleeps.
  void finish() {
    if (spin([this] { return busy_.load(std::memory_order_acquire) == 0; })) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
  }

  void serve() {
    float_modes own = float_modes::current();
    for (std::uint64_t seen = 0;;) {
      spin([&] { return loops_.load(std::memory_order_acquire) != seen; });
      const loop* all = nullptr;
      float_modes modes;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || loops_.load(std::memory_order_relaxed) != seen; });
        if (stopping_) return;
        seen = loops_.load(std::memory_order_relaxed);
        all = loop_;
        modes = modes_;
      }
      if (modes != own) {
        modes.apply();
        own = modes;
      }
      take(*all);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex_);
        done_.notify_one();
      }
    }
  }

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

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

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
