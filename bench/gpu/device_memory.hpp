// Memory of the GPU and streams that are given back. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "slamb/core/cuda_error.hpp"

namespace bench {

/// A stream that does not wait for the default one.
class cuda_stream {
 public:
  /// @throws slamb::cuda_error
  cuda_stream() {
    slamb::detail::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  cuda_stream(cuda_stream&&) = delete;
  ~cuda_stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const noexcept { return stream_; }
  /// @throws slamb::cuda_error, also of what was enqueued before
  void wait() const { slamb::detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Floats in the memory of the GPU that is current; not initialised.
class device_array {
 public:
  /// @throws slamb::cuda_error
  explicit device_array(std::size_t count) : count_(count) {
    slamb::detail::check_cuda(cudaMalloc(&memory_, count * sizeof(float)), "cudaMalloc");
  }
  device_array(device_array&&) = delete;
  ~device_array() { cudaFree(memory_); }

  float* data() const noexcept { return static_cast<float*>(memory_); }
  std::size_t size() const noexcept { return count_; }

 private:
  void* memory_ = nullptr;
  std::size_t count_;
};

}  // namespace bench
