// side_stream for CUDA streams: runs tasks on a second stream, concurrently with the stream of an optimizer.
// Plain C++: needs no nvcc.
#pragma once

#include <cstddef>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/detail/runtime/cuda_event.hpp"
#include "slamb/detail/runtime/side_stream.hpp"

namespace slamb::detail {

/// Runs tasks on its own stream. Both streams can be captured into one graph.
template <class Task>
class side_stream<cudaStream_t, Task> {
 public:
  /// @throws cuda_error
  side_stream(cudaStream_t beside, std::size_t /*most*/) : beside_(beside) {
    check_cuda(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  side_stream(const side_stream&) = delete;
  side_stream& operator=(const side_stream&) = delete;
  ~side_stream() { cudaStreamDestroy(own_); }

  /// The stream of the tasks.
  cudaStream_t stream() const noexcept { return own_; }

  /// Enqueues the task after all work enqueued on both streams so far.
  /// @throws cuda_error; exceptions of the task
  void start(const Task& task) {
    reached_.record(beside_);
    reached_.hold_back(own_);
    is_ahead_ = true;
    task(own_);
  }

  /// Later work on the main stream waits for all tasks; the caller does not wait.
  /// @throws cuda_error
  void join() {
    if (!is_ahead_) return;
    is_ahead_ = false;
    reached_.record(own_);
    reached_.hold_back(beside_);
  }

 private:
  cuda::event reached_;
  cudaStream_t beside_;
  cudaStream_t own_ = nullptr;
  bool is_ahead_ = false;
};

}  // namespace slamb::detail
