// Failures in trainings with 1-bit Adam, 1-bit LAMB or 0/1 Adam: gradients that are not finite, and communicators that fail in
// either phase of an exchange. A failed step must not change the errors either.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/faulty_training.hpp"
#include "support/one_bit_cluster.hpp"

namespace faults_one_bit_training_tests {
namespace {

using slamb::scale_sharing;
using slamb::thread_communicator;
using slamb::thread_group;
using fault_kind = slamb::thread_group::fault::kind_type;
using test_support::check_failure_at_each_round;
using test_support::check_overflows;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;
using test_support::rounds_at_construction;
using test_support::rounds_before_first_step;
using test_support::trajectory;

using adam = slamb::one_bit_adam<thread_communicator>;
using lamb = slamb::one_bit_lamb<thread_communicator>;
using zero_one = slamb::zero_one_adam<thread_communicator>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// Steps 1 and 3 refresh the variance, steps 2 and 4 send gradients in one bit; from step 5 on each step exchanges.
constexpr slamb::exponential_variance_interval short_variance{.freeze_step = 4, .update_scaler = 1};

/// The fault model with one tensor that is not compressed.
model partly_compressed() {
  model tensors = test_support::fault_model();
  tensors[3].options.compress = false;
  return tensors;
}

}  // namespace

TEST_CASE("overflow: a step with a gradient that is not finite is skipped by all ranks of 1-bit Adam and 1-bit LAMB") {
  check_overflows<adam>({.warm_up = {1}});
  check_overflows<adam>({.warm_up = {2}, .compressor = {.scales = scale_sharing::per_tensor}});
  check_overflows<lamb>({.warm_up = {1}});
  check_overflows<lamb>({.warm_up = {2}, .compressor = {.scales = scale_sharing::per_tensor}});
}

TEST_CASE("overflow: the step is skipped by a single rank with compress_single_rank") {
  const experiment e = make_experiment(test_support::fault_model(), 140, 1, 4);
  for (const std::size_t when : {std::size_t{0}, std::size_t{2}}) {
    test_support::check_skipped<adam>(e, {.compress_single_rank = true, .warm_up = {1}}, not_a_number, 5000, when);
    test_support::check_skipped<lamb>(e, {.compress_single_rank = true, .warm_up = {1}}, infinity, 5000, when);
  }
}

TEST_CASE("overflow: the step is skipped if the tensor is dense") {
  for (const int world : {1, 2, 3}) {
    const experiment e = make_experiment(partly_compressed(), 141, world, 4);
    for (const float value : {not_a_number, -infinity, 1e30F}) {
      CAPTURE(world);
      CAPTURE(value);
      test_support::check_skipped<adam>(e, {.warm_up = {1}}, value, 9017 + 5, 2);
      test_support::check_skipped<lamb>(e, {.warm_up = {1}}, value, 9017 + 5, 2);
      test_support::check_skipped<zero_one>(e, {.variance_schedule = short_variance}, value, 9017 + 5, 1);
    }
  }
}

TEST_CASE("overflow: the step is skipped by all ranks of 0/1 Adam if there is an exchange") {
  // A refresh, one bit, a refresh, one bit.
  check_overflows<zero_one>({.variance_schedule = {.freeze_step = 100, .update_scaler = 1}});
  // The second phase begins at step 2.
  check_overflows<zero_one>({.variance_schedule = {.freeze_step = 0}});
  check_overflows<zero_one>(
      {.variance_schedule = {.freeze_step = 0}, .compressor = {.scales = scale_sharing::per_tensor}});
}

TEST_CASE("overflow: in a local step of 0/1 Adam only that rank drops its gradient") {
  // Exchanges at steps 2, 3, 5, 7 and 9.
  const zero_one::options_type options{.variance_schedule = {.freeze_step = 0},
                                       .local_schedule = {.scaler = 1, .clipper = 2}};
  const experiment e = make_experiment(test_support::fault_model(), 142, 2, 10);
  const trajectory expected = test_support::train<zero_one>(e, options);
  trajectory reached(e.steps(), std::vector<std::vector<float>>(2));
  constexpr std::size_t when = 5;  // step 6
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    zero_one run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      std::vector<float> gradient = e.gradients[t][rank];
      if (t == when && rank == 1) gradient[5000] = not_a_number;
      mine.set_gradient(gradient);
      const std::vector<float> before = mine.values();
      run.step(e.rates[t]);
      reached[t][rank] = mine.values();
      if (t == when) CHECK(test_support::same_bits(reached[t][rank], before) == (rank == 1));
    }
    CHECK(run.statistics().step == e.steps());
    CHECK(run.statistics().skipped_steps == 0);
    CHECK(run.statistics().local_skips == rank);
  });
  CHECK_FALSE(test_support::ranks_agree(expected, when));
  for (std::size_t t = 0; t < when; ++t) CHECK(test_support::same_bits(reached[t][1], expected[t][1]));
  CHECK(test_support::same_bits(reached[when][0], expected[when][0]));
  for (std::size_t t = 0; t < e.steps(); ++t) {
    CAPTURE(t);
    CHECK(test_support::ranks_agree(reached, t) == test_support::ranks_agree(expected, t));
    for (const float x : reached[t][1]) REQUIRE(x - x == 0.0F);
  }
}

TEST_CASE("failure: a communicator that throws in either phase of an exchange changes nothing on any rank") {
  // Three steps: a warm-up of one collective, then two of two each.
  check_failure_at_each_round<adam>({.warm_up = {1}}, 5);
  check_failure_at_each_round<lamb>({.warm_up = {1}}, 5);
  check_failure_at_each_round<adam>({.warm_up = {1}, .compressor = {.scales = scale_sharing::per_tensor}}, 5);
  // A refresh, a gradient in one bit, a refresh; and then with two exchanges of updates.
  check_failure_at_each_round<zero_one>({.variance_schedule = {.freeze_step = 100, .update_scaler = 1}}, 4);
  check_failure_at_each_round<zero_one>({.variance_schedule = {.freeze_step = 0}}, 5);
}

TEST_CASE("failure: after a step that failed on all ranks, 1-bit training continues unchanged, with its errors") {
  const auto check = [](const model& tensors, const test_support::optimizer_maker& make) {
    const experiment e = make_experiment(tensors, 143, 2, 7);
    const trajectory expected = test_support::train(e, make);
    const std::uint64_t construction = rounds_at_construction(make);
    for (std::uint64_t first = construction; first < construction + 16; ++first) {
      int failures = 0;
      // Once, twice in a row, and once more later.
      const trajectory reached = test_support::train_through_failures(e, make, {first, first + 1, first + 4}, failures);
      CAPTURE(first);
      CHECK(test_support::same_bits(reached, expected));
      if (first < construction + 4) CHECK(failures >= 2);
    }
  };
  using ranks = slamb::any_communicator<>;
  using test_support::maker_of;
  for (const bool partly : {false, true}) {
    const model tensors = partly ? partly_compressed() : test_support::fault_model();
    check(tensors, maker_of<slamb::one_bit_adam<ranks>>({.warm_up = {2}}));
    check(tensors, maker_of<slamb::one_bit_lamb<ranks>>({.warm_up = {2}}));
    check(tensors,
          maker_of<slamb::one_bit_lamb<ranks>>({.warm_up = {1}, .compressor = {.scales = scale_sharing::per_tensor}}));
    check(tensors, maker_of<slamb::zero_one_adam<ranks>>({.variance_schedule = short_variance}));
    check(tensors, maker_of<slamb::zero_one_adam<ranks>>(
                       {.variance_schedule = {.freeze_step = 0}, .local_schedule = {.scaler = 1, .clipper = 2}}));
  }
}

TEST_CASE("failure: a rank that stalls in an exchange ends in an exception on all ranks within the timeout") {
  using namespace std::chrono_literals;
  const experiment e = make_experiment(test_support::fault_model(), 144, 3, 3);
  const auto check = [&e]<class Optimizer>(Optimizer* /*type*/, const typename Optimizer::options_type& options,
                                           std::uint64_t round) {
    thread_group group(3, {.timeout = 3s});
    group.inject(
        {.rank = 2, .round = rounds_before_first_step<Optimizer>(options) + round, .kind = fault_kind::stalls});
    const auto begin = std::chrono::steady_clock::now();
    const auto seen = test_support::train_until_failure<Optimizer>(e, options, group);
    CHECK(std::chrono::steady_clock::now() - begin < 60s);
    const trajectory expected = test_support::train<Optimizer>(e, options);
    for (std::size_t rank = 0; rank < seen.size(); ++rank) {
      CHECK(seen[rank].threw);
      CHECK(seen[rank].counted == 1);
      CHECK(test_support::same_bits(seen[rank].values, expected[0][rank]));
    }
  };
  for (const std::uint64_t round : {1U, 2U}) {  // the first and the second phase of step 2
    check(static_cast<adam*>(nullptr), {.warm_up = {1}}, round);
    check(static_cast<zero_one*>(nullptr), {.variance_schedule = {.freeze_step = 0}}, round);
  }
}

}  // namespace faults_one_bit_training_tests
