#include "copy.hpp"

#include <thrust/device_vector.h>

namespace bench {
namespace {

constexpr unsigned threads = 256;
constexpr unsigned of_thread = copy_unit / 4 / threads;  // vectors of four floats

// A thread issues all its loads before its first store.
__global__ void __launch_bounds__(threads) copy_kernel(const float4* __restrict__ from, float4* __restrict__ to) {
  const std::size_t first = std::size_t{blockIdx.x} * threads * of_thread + threadIdx.x;
  float4 values[of_thread];
#pragma unroll
  for (unsigned i = 0; i < of_thread; ++i) values[i] = from[first + i * threads];
#pragma unroll
  for (unsigned i = 0; i < of_thread; ++i) to[first + i * threads] = values[i];
}

__global__ void __launch_bounds__(threads) made_up_kernel(float* to, std::size_t count, float scale, unsigned seed) {
  for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * threads)
    to[i] = made_up(static_cast<std::uint32_t>(i), seed, scale);
}

}  // namespace

void enqueue_copy(const float* from, float* to, std::size_t count, cudaStream_t stream) {
  copy_kernel<<<static_cast<unsigned>(count / copy_unit), threads, 0, stream>>>(reinterpret_cast<const float4*>(from),
                                                                                reinterpret_cast<float4*>(to));
  slamb::detail::check_cuda(cudaGetLastError(), "a kernel's launch");
}

struct made_up_array::memory {
  thrust::device_vector<float> values;
};

made_up_array::made_up_array(std::size_t count, const made_up_values& values, cudaStream_t stream)
    : memory_(std::make_unique<memory>(memory{thrust::device_vector<float>(count)})),
      data_(memory_->values.data().get()),
      size_(count) {
  made_up_kernel<<<1024, threads, 0, stream>>>(data_, size_, values.scale, values.seed);
  slamb::detail::check_cuda(cudaGetLastError(), "a kernel's launch");
}
made_up_array::~made_up_array() = default;

}  // namespace bench
