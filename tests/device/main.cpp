// The entry point of slamb_device_tests: with no GPU it says so, and its status is the one that ctest shows as skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <iostream>

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver || (found == cudaSuccess && devices == 0)) {
    std::cout << "skipped: no GPU (" << cudaGetErrorString(found) << ")" << std::endl;
    return skipped;
  }
  if (found != cudaSuccess) {
    std::cerr << "slamb_device_tests: cudaGetDeviceCount failed: " << cudaGetErrorString(found) << std::endl;
    return 1;
  }
  return doctest::Context(argc, argv).run();
}
