// A CUDA stream that is destroyed with its scope. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace programs {

/// @throws std::runtime_error naming the CUDA runtime call that failed
inline void require_success(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(code));
}

/// A stream of the current device. It does not wait for the default stream.
class cuda_stream {
 public:
  cuda_stream() {
    require_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  cuda_stream(cuda_stream&&) = delete;
  ~cuda_stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const noexcept { return stream_; }
  void wait() const { require_success(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace programs
