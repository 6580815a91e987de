// Buffers in the memory of the stand-in's device, filled and read in the order of a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <slamb/core/allocator.hpp>
#include <slamb/mpi_cuda.hpp>

namespace mpi_tests {

/// A copy of a span of the host, with a margin on both sides that nothing may touch.
template <class T>
class device_buffer {
 public:
  device_buffer(std::span<const T> values, cudaStream_t stream)
      : memory_((values.size() + 2 * margin) * sizeof(T)), all_(values.size() + 2 * margin) {
    std::fill_n(reinterpret_cast<std::byte*>(all_.data()), all_.size() * sizeof(T), std::byte{0x5A});
    std::copy(values.begin(), values.end(), all_.begin() + margin);
    cudaMemcpyAsync(memory_.data(), all_.data(), all_.size() * sizeof(T), cudaMemcpyDefault, stream);
  }

  std::span<T> span() const { return {reinterpret_cast<T*>(memory_.data()) + margin, all_.size() - 2 * margin}; }

  /// The values after the stream is done. @throws std::runtime_error if a margin was touched
  std::vector<T> values(cudaStream_t stream) {
    std::vector<T> now(all_.size());
    cudaMemcpyAsync(now.data(), memory_.data(), now.size() * sizeof(T), cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    if (!std::equal(now.begin(), now.begin() + margin, all_.begin()) ||
        !std::equal(now.end() - margin, now.end(), all_.end() - margin))
      throw std::runtime_error("a margin was written");
    return {now.begin() + margin, now.end() - margin};
  }

 private:
  static constexpr std::size_t margin = 3;

  device_stand_in::memory memory_;
  std::vector<T> all_;  // the initial values; the stream copies them to the device
};

/// Allocates memory of the stand-in's device.
inline slamb::allocator device_allocator() {
  const auto device = std::make_shared<std::map<void*, std::unique_ptr<device_stand_in::memory>>>();
  return {.allocate =
              [device](std::size_t bytes) {
                auto allocated = std::make_unique<device_stand_in::memory>(bytes);
                void* const first = allocated->data();
                (*device)[first] = std::move(allocated);
                return first;
              },
          .deallocate = [device](void* first, std::size_t /*bytes*/) { device->erase(first); }};
}

}  // namespace mpi_tests
