// What the scenarios over NCCL need from nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <slamb/nccl.hpp>

#include "../optimizers.hpp"

namespace device_tests {

std::unique_ptr<optimizer> lamb_int8_on_device(ingredients from);

/// Calls check_communicator in memory of the GPU. @throws as check_communicator
void check_nccl_ranks(slamb::nccl_communicator& ranks, cudaStream_t stream);

}  // namespace device_tests
