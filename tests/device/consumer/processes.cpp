// A user's program, compiled by a C++ compiler: the sum of a buffer on the GPU over the processes of MPI.
#include <slamb/mpi_cuda.hpp>
#include <span>

int main(int argc, char** argv) {
  slamb::mpi_environment mpi(argc, argv);
  slamb::cuda_mpi_communicator communicator;
  float* values = nullptr;
  slamb::detail::check_cuda(cudaMalloc(reinterpret_cast<void**>(&values), 100 * sizeof(float)), "cudaMalloc");
  slamb::detail::check_cuda(cudaMemset(values, 0, 100 * sizeof(float)), "cudaMemset");
  communicator.all_reduce_sum(std::span<float>(values, 100), nullptr);
}
