// Memory of the GPU and streams that are given back, for tests in plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <slamb/core/cuda_error.hpp>
#include <span>
#include <utility>
#include <vector>

namespace device_tests {

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

/// Bytes of the GPU that is current, all of them 0xFF at first: floats that are not numbers.
class poisoned_memory {
 public:
  explicit poisoned_memory(std::size_t bytes) : bytes_(bytes) {
    slamb::detail::check_cuda(cudaMalloc(&memory_, bytes == 0 ? 1 : bytes), "cudaMalloc");
    slamb::detail::check_cuda(cudaMemset(memory_, 0xFF, bytes), "cudaMemset");
    slamb::detail::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // for streams that wait for no other
  }
  poisoned_memory(poisoned_memory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
  poisoned_memory& operator=(poisoned_memory&&) = delete;
  ~poisoned_memory() { cudaFree(memory_); }

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_); }
  std::size_t size() const noexcept { return bytes_; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// In the order of `on`. @{
template <class T>
void upload(std::span<const T> from, T* to, cudaStream_t on) {
  slamb::detail::check_cuda(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyDefault, on),
                            "cudaMemcpyAsync");
  slamb::detail::check_cuda(cudaStreamSynchronize(on), "cudaStreamSynchronize");
}
template <class T>
std::vector<T> downloaded(const T* from, std::size_t count, cudaStream_t on) {
  std::vector<T> values(count);
  slamb::detail::check_cuda(cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDefault, on),
                            "cudaMemcpyAsync");
  slamb::detail::check_cuda(cudaStreamSynchronize(on), "cudaStreamSynchronize");
  return values;
}
/// @}

}  // namespace device_tests
