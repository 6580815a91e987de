// A stream and floats on the GPU that is current, given back at the end: what the examples for GPUs own of a device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <slamb/core/cuda_error.hpp>
#include <span>
#include <utility>

namespace device_memory {

/// A stream that does not wait for the default one.
class stream {
 public:
  stream() {
    slamb::detail::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  stream(stream&&) = delete;
  ~stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const noexcept { return stream_; }
  void wait() const { slamb::detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Floats on the GPU, not initialised.
class floats {
 public:
  explicit floats(std::size_t size) : size_(size) {
    void* memory = nullptr;
    slamb::detail::check_cuda(cudaMalloc(&memory, size * sizeof(float)), "cudaMalloc");
    values_ = static_cast<float*>(memory);
  }
  floats(floats&& other) noexcept : values_(std::exchange(other.values_, nullptr)), size_(other.size_) {}
  floats& operator=(floats&&) = delete;
  ~floats() { cudaFree(values_); }

  float* data() const noexcept { return values_; }
  std::size_t size() const noexcept { return size_; }
  std::span<float> span() const noexcept { return {values_, size_}; }

 private:
  float* values_ = nullptr;
  std::size_t size_ = 0;
};

/// Copies `count` floats from or to the GPU, in the order of `on`. What is copied from the host may change once the
/// call has returned; what is copied to it is there when the stream has been waited for.
inline void copy(const float* from, float* to, std::size_t count, cudaStream_t on) {
  slamb::detail::check_cuda(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDefault, on), "cudaMemcpyAsync");
}

}  // namespace device_memory
