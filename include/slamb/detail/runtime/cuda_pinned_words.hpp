// Pinned memory for single values. Releasing it never waits for a device. Plain C++: needs no nvcc.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"

namespace slamb::detail::cuda {

/// Lends words of 64 bytes of pinned memory, which all devices can access. The memory is kept until the process ends, 4 KiB for
/// each 64 words that are lent at once, because cudaFreeHost waits for all streams of a device, also for a stream that waits for
/// a dead peer. Any thread may call these functions.
class pinned_words {
 public:
  static constexpr std::size_t word = 64;  ///< bytes

  /// @throws cuda_error
  static void* lend() {
    pinned_words& all = every();
    const std::lock_guard lock(all.mutex_);
    if (all.free_.empty()) all.add_page();
    void* const memory = all.free_.back();
    all.free_.pop_back();
    return memory;
  }
  /// @param memory  a word that nothing writes any more
  static void take_back(void* memory) noexcept {
    pinned_words& all = every();
    const std::lock_guard lock(all.mutex_);
    all.free_.push_back(memory);  // has room for every word there is
  }

 private:
  static constexpr std::size_t page = 4096;  // bytes

  static pinned_words& every() {
    static auto& all = *new pinned_words;  // never destroyed, because optimizers may be destroyed when the process ends
    return all;
  }

  void add_page() {
    free_.reserve(words_ + page / word);
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, page), "cudaMallocHost");
    words_ += page / word;
    for (std::size_t i = 0; i < page; i += word) free_.push_back(static_cast<std::byte*>(memory) + i);
  }

  std::mutex mutex_;
  std::vector<void*> free_;
  std::size_t words_ = 0;  // of all pages
};

}  // namespace slamb::detail::cuda
