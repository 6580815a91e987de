// A user's program: a single rank sums a vector.
#include <slamb/nccl.hpp>
#include <span>

int main() {
  slamb::nccl_communicator communicator(slamb::nccl_communicator::unique_id(), 0, 1);
  cudaStream_t stream = nullptr;
  slamb::detail::check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  float* values = nullptr;
  slamb::detail::check_cuda(cudaMalloc(&values, 100 * sizeof(float)), "cudaMalloc");
  communicator.all_reduce_sum(std::span(values, 100), stream);
  communicator.wait(stream);
}
