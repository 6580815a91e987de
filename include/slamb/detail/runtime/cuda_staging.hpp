// Pinned host memory for copying payloads to and from a GPU, in two halves that are used in turn. Plain C++: needs no nvcc.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/detail/runtime/cuda_event.hpp"

namespace slamb::detail::cuda {

/// Owns pinned host memory, and events that tell when its halves are ready. The destructor waits until the copies before the last
/// `release` are done, then frees the memory. It belongs to the device that was current at construction, and its streams must,
/// too.
class staging {
 public:
  /// @throws cuda_error
  explicit staging(std::size_t bytes) : half_(bytes / 2) {
    if (bytes > 0) check_cuda(cudaMallocHost(&memory_, bytes), "cudaMallocHost");
  }
  staging(staging&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        half_(other.half_),
        ready_(std::move(other.ready_)),
        done_(std::move(other.done_)) {}
  staging& operator=(staging other) noexcept {  // `other` releases what this object held before
    std::swap(memory_, other.memory_);
    std::swap(half_, other.half_);
    std::swap(ready_, other.ready_);
    std::swap(done_, other.done_);
    return *this;
  }
  ~staging() {
    if (memory_ == nullptr) return;
    done_.wait();
    cudaFreeHost(memory_);
  }

  std::size_t half_size() const noexcept { return half_; }
  std::byte* half(int slot) const noexcept {
    return static_cast<std::byte*>(memory_) + static_cast<std::size_t>(slot) * half_;
  }

  /// `mark` records the work on `stream` so far for a slot. `is_ready` is true if that work is done. @throws cuda_error @{
  void mark(int slot, cudaStream_t stream) const { ready_[static_cast<std::size_t>(slot)].record(stream); }
  bool is_ready(int slot) const { return ready_[static_cast<std::size_t>(slot)].is_done(); }
  /// @}

  /// Between `acquire` and `release`, work on `stream` may use the memory. `acquire` makes later work on `stream` wait for the
  /// last release, which may have been on another stream. @throws cuda_error @{
  void acquire(cudaStream_t stream) const { done_.hold_back(stream); }
  void release(cudaStream_t stream) const { done_.record(stream); }
  /// @}

  /// The memory is never freed, because MPI or a device may still write to it.
  void keep() noexcept { memory_ = nullptr; }

 private:
  void* memory_ = nullptr;
  std::size_t half_ = 0;  // bytes
  std::array<event, 2> ready_;
  event done_;
};

}  // namespace slamb::detail::cuda
