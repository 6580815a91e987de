// The GPU compared with the host backend, which is its oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "training.hpp"

namespace {

using device_tests::is_same_step;
using device_tests::nearly_same;
using device_tests::outcome;
using device_tests::plan;
using device_tests::recipe;
using device_tests::recipes;
using device_tests::run;
using device_tests::side;

}  // namespace

TEST_CASE("device and host: one step of random layouts") {
  for (const recipe& of : recipes)
    for (const int ranks : {1, 3})
      for (const std::uint64_t seed : {1, 2, 3}) {
        CAPTURE(of.name);
        CAPTURE(ranks);
        CAPTURE(seed);
        const plan given{.shapes = test_support::random_shapes(seed, 40), .ranks = ranks};
        const outcome there = run(of, side::device, given);
        const outcome here = run(of, side::host, given);
        CHECK(there.same_on_all == here.same_on_all);  // ranks of SLAMB differ between averagings
        CHECK(there.steps == 1);
        CHECK(is_same_step(of, there, here));
      }
}

TEST_CASE("device and host: tensors of several tiles") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const plan given{.shapes = {{3 * 8192 + 5, 2}, {8192, 2}, {20011, 3}, {8193, 1}}, .ranks = 2, .steps = 7};
    const outcome there = run(of, side::device, given);
    CHECK(there.steps == 7);
    CHECK(nearly_same(there, run(of, side::host, given)));
  }
}

TEST_CASE("device and host: more tiles than blocks on the GPU") {
  for (const recipe& of : recipes) {
    const std::string_view name(of.name);
    if (name != "lamb" && name != "slamb" && name != "one_bit_lamb")
      continue;  // the three recipes have all kernels over tiles
    CAPTURE(of.name);
    const plan given{.shapes = {{12'000'003, 2}, {5, 1}}, .steps = 5};
    CHECK(nearly_same(run(of, side::device, given), run(of, side::host, given)));
  }
}

TEST_CASE("device and host: rows without a gradient") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const plan given{
        .shapes = {{9000, 2}, {50, 1}, {10 * 8192, 2}, {300, 2}}, .ranks = 2, .steps = 7, .has_rows = true};
    const outcome there = run(of, side::device, given);
    CHECK(there.steps == 7);
    CHECK(nearly_same(there, run(of, side::host, given)));
  }
}

TEST_CASE("device and host: all phases") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const plan given{.shapes = test_support::random_shapes(9, 40), .ranks = 2, .steps = 7};
    const outcome there = run(of, side::device, given);
    CHECK(there.steps == 7);
    CHECK(nearly_same(there, run(of, side::host, given)));
  }
}

TEST_CASE("device: the same bits from run to run") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    const plan given{.shapes = test_support::random_shapes(4, 40), .ranks = 3, .steps = 7};
    CHECK(device_tests::same_bits(run(of, side::device, given).parameters, run(of, side::device, given).parameters));
  }
}

TEST_CASE("device and host: each loads the other's saved state") {
  for (const recipe& of : recipes)
    for (const side first : {side::host, side::device}) {
      CAPTURE(of.name);
      CAPTURE(first == side::host);
      const side second = first == side::host ? side::device : side::host;
      plan given{.shapes = test_support::random_shapes(5, 30), .steps = 4};
      const outcome half = run(of, first, given);
      given.state = half.state;
      given.parameters = half.parameters;
      given.first_step = 4;
      given.steps = 3;
      const outcome moved = run(of, second, given);
      const outcome stayed = run(of, first, given);
      CHECK(moved.steps == 7);
      CHECK(nearly_same(moved, stayed));
      given.steps = 0;
      CHECK(run(of, second, given).state == half.state);
    }
}

TEST_CASE("device and host: a state of other ranks resumes alike on both") {
  for (const recipe& of : recipes) {
    CAPTURE(of.name);
    plan given{.shapes = test_support::random_shapes(6, 30), .ranks = 2, .steps = 4};
    const outcome half = run(of, side::host, given);
    given.state = half.state;
    given.state_is_of_others = true;
    given.parameters = half.parameters;
    given.first_step = 4;
    given.steps = 3;
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(ranks);
      given.ranks = ranks;
      const outcome on_device = run(of, side::device, given);
      CHECK(on_device.steps == 7);
      CHECK(nearly_same(on_device, run(of, side::host, given)));
    }
  }
}
