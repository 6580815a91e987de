// Tells if the device tests can run.
#pragma once

#include <cuda_runtime_api.h>

#include <iostream>

namespace device_tests {

/// Returns 0 with a GPU. Without one it prints so, and returns the status that ctest shows as skipped; 1 if CUDA fails.
inline int status_without_gpu() {
  constexpr int skipped = 77;
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver || (found == cudaSuccess && devices == 0)) {
    std::cout << "skipped: no GPU (" << cudaGetErrorString(found) << ")" << std::endl;
    return skipped;
  }
  if (found != cudaSuccess) {
    std::cerr << "device tests: cudaGetDeviceCount failed: " << cudaGetErrorString(found) << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace device_tests
