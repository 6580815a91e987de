// An optimizer uses the device that was current at its construction, and does not change the caller's current device.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "training.hpp"

namespace {

using device_tests::outcome;
using device_tests::plan;
using device_tests::rank_of_run;
using device_tests::recipe;
using device_tests::recipes;
using device_tests::side;

int current_device() {
  int device = -1;
  slamb::detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

bool has_one_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2;
}

/// Seven steps from device 0; the optimizer's functions are called while `elsewhere` is current.
outcome train(const recipe& of, int elsewhere) {
  const plan given{.shapes = test_support::random_shapes(9, 20)};
  slamb::thread_group alone(1);
  const device_tests::stream on;
  std::optional<rank_of_run> run(std::in_place, of, side::device, given, alone.communicator(0), on);
  for (std::size_t i = 0; i < 7; ++i) {
    run->prepare(i);
    slamb::detail::check_cuda(cudaSetDevice(elsewhere), "cudaSetDevice");
    run->take();
    CHECK(current_device() == elsewhere);
    slamb::detail::check_cuda(cudaSetDevice(0), "cudaSetDevice");
  }
  slamb::detail::check_cuda(cudaSetDevice(elsewhere), "cudaSetDevice");
  const outcome result = run->result();
  run.reset();
  CHECK(current_device() == elsewhere);
  slamb::detail::check_cuda(cudaSetDevice(0), "cudaSetDevice");
  return result;
}

}  // namespace

TEST_CASE("device: calls do not change the current device") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    CHECK(train(of, 0).steps == 7);
  }
}

TEST_CASE("device: steps are the same while another device is current" * doctest::skip(has_one_device())) {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const outcome here = train(of, 0), there = train(of, 1);
    CHECK(there.state == here.state);
    CHECK(device_tests::same_bits(there.parameters, here.parameters));
  }
}

#if CUDART_VERSION >= 12080
TEST_CASE("device: a stream of another device is rejected" * doctest::skip(has_one_device())) {
  slamb::thread_group alone(1);
  const device_tests::stream on;
  slamb::detail::check_cuda(cudaSetDevice(1), "cudaSetDevice");
  CHECK_THROWS_AS(
      rank_of_run(recipes[0], side::device, {.shapes = test_support::random_shapes(9, 2)}, alone.communicator(0), on),
      std::invalid_argument);
  slamb::detail::check_cuda(cudaSetDevice(0), "cudaSetDevice");
}
#endif
