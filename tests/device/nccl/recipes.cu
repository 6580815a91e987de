#include "recipes.hpp"

#include <slamb/backend/cuda/cuda_backend.cuh>
#include <slamb/testing/check_communicator.hpp>
#include <utility>

#include "../adapter.hpp"

std::unique_ptr<device_tests::optimizer> device_tests::lamb_int8_on_device(ingredients from) {
  return on_device<slamb::lamb<slamb::int8, slamb::cuda_backend>>(std::move(from));
}

void device_tests::check_nccl_ranks(slamb::nccl_communicator& ranks, cudaStream_t stream) {
  slamb::check_communicator<double>(ranks, slamb::cuda_backend{.stream = stream}, {.large = 10'007});
}
