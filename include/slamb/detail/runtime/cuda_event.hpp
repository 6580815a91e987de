// An event of the CUDA runtime that is destroyed with its owner. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "slamb/core/cuda_error.hpp"

namespace slamb::detail::cuda {

/// A point in the work of a stream, of the device that was current when it was made. It keeps no time.
class event {
 public:
  /// @throws cuda_error
  event() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  event(event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  event& operator=(event other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  /// Marks what `stream` has been given so far. @throws cuda_error
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// What `stream` is given from now on waits for what was marked; the caller does not. @throws cuda_error
  void hold_back(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  /// Whether what was marked is done, without waiting for it. @throws cuda_error, also for what has failed before
  bool is_done() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) return check_cuda(state, "cudaEventQuery"), true;
    static_cast<void>(cudaGetLastError());  // "not ready" too is kept as an error, which a later check would find
    return false;
  }
  /// Waits until the recorded work is done or has failed; the next call of the runtime reports the failure.
  void wait() const noexcept { static_cast<void>(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace slamb::detail::cuda
