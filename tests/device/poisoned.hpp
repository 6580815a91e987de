// Memory of the GPU filled with NaN, and copies in the order of a stream. Plain C++: constructing a thrust::device_vector from
// host values needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>
#include <thrust/device_vector.h>

#include <algorithm>
#include <cstddef>
#include <slamb/core/cuda_error.hpp>
#include <span>
#include <vector>

#include "../../examples/common/cuda_stream.hpp"

namespace device_tests {

using stream = programs::cuda_stream;

/// At least one byte on the current GPU, every byte 0xFF. The function is static in each source, because Thrust's types have
/// other names where nvcc compiles them.
[[maybe_unused]] static thrust::device_vector<std::byte> poisoned(std::size_t bytes) {
  const std::vector<std::byte> values(std::max<std::size_t>(bytes, 1), std::byte{0xFF});
  return {values.begin(), values.end()};
}

/// Copies in the order of `on`. @{
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
