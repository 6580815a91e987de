// An owning handle of a CUDA event. Plain C++: needs no nvcc.
#pragma once

#include <utility>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"

namespace slamb::detail::cuda {

/// A point in the work of a stream of the device that was current at construction. It does not measure time.
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

  /// Records the work enqueued on `stream` so far. @throws cuda_error
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Later work on `stream` waits for the recorded work; the caller does not wait. @throws cuda_error
  void hold_back(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  /// True if the recorded work is done. Does not wait. @throws cuda_error, also for failures of earlier work
  bool is_done() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) return check_cuda(state, "cudaEventQuery"), true;
    static_cast<void>(cudaGetLastError());  // clears "not ready", which a later check would report as an error
    return false;
  }
  /// Waits until the recorded work is done or has failed. The next call of the runtime reports a failure.
  void wait() const noexcept { static_cast<void>(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace slamb::detail::cuda
