// A CUDA event with a time stamp. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "slamb/core/cuda_error.hpp"

namespace bench {

/// A point in the work of a stream, on the device that was current at construction.
class timed_event {
 public:
  /// @throws slamb::cuda_error
  timed_event() { slamb::detail::check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  timed_event(timed_event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  timed_event& operator=(timed_event other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~timed_event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  /// Marks the current end of the work on `stream`. @throws slamb::cuda_error
  void record(cudaStream_t stream) const {
    slamb::detail::check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  /// Seconds from `first` to this event. Waits for this event. @throws slamb::cuda_error
  double seconds_since(const timed_event& first) const {
    float milliseconds = 0.0F;
    slamb::detail::check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    slamb::detail::check_cuda(cudaEventElapsedTime(&milliseconds, first.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace bench
