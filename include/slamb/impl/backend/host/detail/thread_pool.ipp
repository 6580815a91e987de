#pragma once

#include <algorithm>

#include "slamb/backend/host/detail/thread_pool.hpp"

namespace slamb::detail::host {

SLAMB_DECL thread_pool::thread_pool(unsigned threads) {
  try {
    for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
  } catch (...) {
    stop();
    throw;
  }
}

SLAMB_DECL void thread_pool::run(const loop& all) {
  if (workers_.empty() || all.last - all.first <= all.grain) return run_on_caller(all);
  next_.store(all.first, std::memory_order_relaxed);
  start(all);
  take(all);
  finish();
}

SLAMB_DECL void thread_pool::run_on_caller(const loop& all) noexcept {
  for (std::size_t i = all.first; i < all.last; ++i) all.body(all.context, i);
}

SLAMB_DECL void thread_pool::take(const loop& all) noexcept {
  for (;;) {
    const std::size_t begin = next_.fetch_add(all.grain, std::memory_order_relaxed);
    if (begin >= all.last) return;
    for (std::size_t i = begin; i < std::min(all.last, begin + all.grain); ++i) all.body(all.context, i);
  }
}

SLAMB_DECL void thread_pool::start(const loop& all) {
  {
    const std::lock_guard lock(mutex_);
    loop_ = &all;
    modes_ = float_modes::current();
    busy_.store(workers_.size(), std::memory_order_relaxed);
    loops_.store(loops_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  wake_.notify_all();
}

SLAMB_DECL void thread_pool::finish() {
  if (spin([this] { return busy_.load(std::memory_order_acquire) == 0; })) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
}

SLAMB_DECL void thread_pool::serve() {
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

SLAMB_DECL void thread_pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

}  // namespace slamb::detail::host
