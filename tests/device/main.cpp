// The entry point of slamb_device_tests.
#include <doctest/doctest.h>

#include "gpu.hpp"

int main(int argc, char** argv) {
  if (const int status = device_tests::status_without_gpu(); status != 0) return status;
  return doctest::Context(argc, argv).run();
}
