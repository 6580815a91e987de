// A user's program: one step of AdamW on the GPU, with a single header.
#include <slamb/slamb.hpp>

using namespace slamb::names;

static_assert(sizeof(int4) == 16);  // CUDA's

int main() {
  float* values = nullptr;
  slamb::detail::check_cuda(cudaMalloc(&values, 200 * sizeof(float)), "cudaMalloc");
  slamb::detail::check_cuda(cudaMemset(values, 0, 200 * sizeof(float)), "cudaMemset");
  const parameter tensor{.data = values, .gradient = values + 100, .size = 100};
  adamw<cuda_backend> optimizer({&tensor, 1});
  optimizer.step(0.1);
  slamb::detail::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}
