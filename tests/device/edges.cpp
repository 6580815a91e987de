// Extreme layouts and values on the GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <stdexcept>

#include "training.hpp"

namespace {

using device_tests::is_same_step;
using device_tests::outcome;
using device_tests::plan;
using device_tests::recipe;
using device_tests::recipes;
using device_tests::run;
using device_tests::side;

/// Memory of the GPU between two fences, filled with NaN, so that a read of unwritten memory shows.
class fenced_memory {
 public:
  slamb::allocator allocator() {
    return {.allocate = [this](std::size_t bytes) { return allocate(bytes); },
            .deallocate = [this](void* memory, std::size_t bytes) { deallocate(memory, bytes); }};
  }
  bool fences_stand() const { return broken_ == 0; }
  std::size_t allocations() const { return allocations_; }

 private:
  static constexpr std::size_t fence = 4096;

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto memory = device_tests::poisoned(bytes + 2 * fence);
    void* inside = memory.data().get() + fence;
    held_.emplace(inside, std::move(memory));
    ++allocations_;
    return inside;
  }
  void deallocate(void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    slamb::detail::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (const std::byte* side : {static_cast<std::byte*>(memory) - fence, static_cast<std::byte*>(memory) + bytes})
      for (const std::byte b : device_tests::downloaded(side, fence, nullptr)) broken_ += b == std::byte{0xFF} ? 0 : 1;
    held_.erase(memory);
  }

  std::mutex mutex_;
  std::map<void*, thrust::device_vector<std::byte>> held_;
  std::size_t broken_ = 0;
  std::size_t allocations_ = 0;
};

}  // namespace

TEST_CASE("device: tensors at addresses that are multiples of four bytes and of nothing else") {
  for (const recipe& of : recipes)
    for (const std::size_t shift : {1, 2, 3}) {
      CAPTURE(of.name);
      CAPTURE(shift);
      plan given{.shapes = test_support::edge_shapes(), .ranks = 2, .steps = 5};
      const outcome aligned = run(of, side::device, given);
      given.shift = shift;
      const outcome shifted = run(of, side::device, given);
      CHECK(device_tests::same_bits(aligned.parameters, shifted.parameters));
    }
}

TEST_CASE("device: no tensors, and only empty ones") {
  for (const recipe& of : recipes)
    for (const std::size_t tensors : {0, 3}) {
      CAPTURE(of.name);
      CAPTURE(tensors);
      const plan given{.shapes = test_support::tensor_shapes(tensors), .ranks = 2, .steps = 5};
      CHECK(run(of, side::device, given).steps == 5);
    }
}

TEST_CASE("device: ten thousand tensors of one element") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const plan given{.shapes = test_support::tensor_shapes(10000, {1, 2})};
    CHECK(is_same_step(of, run(of, side::device, given), run(of, side::host, given)));
  }
}

TEST_CASE("device: a NaN on one rank skips the step on all") {
  for (const recipe& of : recipes)
    for (const std::size_t step : {0, 2, 5}) {
      CAPTURE(of.name);
      CAPTURE(step);
      plan given{.shapes = test_support::random_shapes(6, 20), .ranks = 3, .steps = 7, .nan_step = step};
      const outcome there = run(of, side::device, given);
      const outcome here = run(of, side::host, given);
      CHECK(there.steps == here.steps);
      CHECK(there.skipped == here.skipped);
      CHECK(std::ranges::all_of(there.parameters, [](float x) { return std::isfinite(x); }));
    }
}

TEST_CASE("device: memory that held NaNs gives the same result, and nothing is written outside it") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    fenced_memory memory;
    plan given{.shapes = test_support::edge_shapes(), .ranks = 2, .steps = 7};
    const outcome expected = run(of, side::device, given);
    given.memory = memory.allocator();
    CHECK(device_tests::same_bits(run(of, side::device, given).parameters, expected.parameters));
    CHECK(memory.allocations() > 0);
    CHECK(memory.fences_stand());
  }
}

TEST_CASE("device: two optimizers on two streams do not affect each other") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const plan one{.shapes = test_support::random_shapes(7, 40), .steps = 7};
    const plan other{.shapes = test_support::random_shapes(8, 40), .steps = 7};
    const std::array expected{run(of, side::device, one), run(of, side::device, other)};
    slamb::thread_group alone(1);
    slamb::thread_group on_single_rank(1);
    device_tests::stream streams[2];
    device_tests::rank_of_run first(of, side::device, one, alone.communicator(0), streams[0]);
    device_tests::rank_of_run second(of, side::device, other, on_single_rank.communicator(0), streams[1]);
    for (std::size_t step = 0; step < 7; ++step) {
      first.step(step);
      second.step(step);
    }
    CHECK(device_tests::same_bits(first.result().parameters, expected[0].parameters));
    CHECK(device_tests::same_bits(second.result().parameters, expected[1].parameters));
  }
}

TEST_CASE("device: a loss scale or an overflow flag in host memory is rejected by name") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    slamb::thread_group alone(1);
    device_tests::stream stream;
    auto data = device_tests::poisoned(64), gradient = device_tests::poisoned(64), cell = device_tests::poisoned(4);
    const auto floats = [](auto& memory) { return reinterpret_cast<float*>(memory.data().get()); };
    const slamb::parameter tensor{.data = floats(data), .gradient = floats(gradient), .size = 16};
    const auto optimizer = of.on_device({.tensors = {&tensor, 1}, .ranks = alone.communicator(0), .stream = stream});
    float on_host = 1.0F;
    CHECK_THROWS_WITH_AS(optimizer->set_gradient_scaling({.loss_scale = &on_host}),
                         doctest::Contains("slamb: gradient_scaling's loss_scale is in host memory; it must be in the "
                                           "memory of device "),
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(optimizer->set_gradient_scaling({.found_inf = &on_host}),
                         doctest::Contains("slamb: gradient_scaling's found_inf is in host memory; it must be in the "
                                           "memory of device "),
                         std::invalid_argument);
    CHECK_NOTHROW(optimizer->set_gradient_scaling({.loss_scale = floats(cell), .found_inf = floats(cell)}));
  }
}
