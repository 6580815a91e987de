// set_steps() with what 1-bit LAMB, 1-bit Adam and 0/1 Adam of another program have kept besides their moments.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/sharded_communicator.hpp"
#include "slamb/slamb.hpp"
#include "support/one_bit_cluster.hpp"
#include "support/said.hpp"

namespace properties_past_steps_tests {
namespace {

using slamb::thread_communicator;
using test_support::contains;
using test_support::experiment;
using test_support::replica;
using test_support::said_by;
using past_steps = slamb::optimizer::past_steps;
using frozen_ratio = slamb::optimizer::frozen_ratio;

using one_bit_adam = slamb::one_bit_adam<thread_communicator>;
using one_bit_lamb = slamb::one_bit_lamb<thread_communicator>;

constexpr std::uint64_t warm_up = 4;
constexpr double tolerance = 2e-6;  // of max |p|
constexpr double wrong = 1e-4;

/// What is told to the optimizer that goes on.
struct told {
  bool ratios = true, warm_up = true, fresh_variance = true;
};

/// Writes the oracle's state of tensors that lie end to end.
void write_moments(const test_support::model& tensors, const oracle::one_bit& from, bool with_fresh,
                   slamb::optimizer& to) {
  std::size_t first = 0;
  const auto write = [&](const oracle::vector& values, std::span<float> own) {
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(values[first + i]);
  };
  for (std::size_t l = 0; l < tensors.size(); first += tensors[l++].size) {
    const slamb::optimizer::tensor_moments own = to.moments(l);
    write(from.momentum(), own.momentum);
    write(from.variance(), own.variance);
    if (with_fresh && !from.fresh_variance().empty()) write(from.fresh_variance(), own.fresh_variance);
  }
}

/// Trains the oracle for `before` steps, lets a new optimizer go on from its state, without compression errors, and returns the
/// largest difference of their parameters after further steps.
template <class Optimizer>
double difference_after(std::uint64_t before, int world, const typename Optimizer::options_type& options,
                        const told& what = {}) {
  experiment e = test_support::make_structured_experiment({{300}, {129}, {8193}, {40}}, 91 + before, world, before + 4);
  oracle::one_bit run = test_support::oracle_at_start(e, options);
  const auto rates = [&e](std::size_t t) { return test_support::rates_of(e.tensors, e.rates[t]); };
  for (std::size_t t = 0; t < before; ++t) run.step(rates(t), test_support::widened(e.gradients[t]));
  run.clear_errors();
  test_support::settling settled(run);
  for (std::size_t t = before; t < e.steps(); ++t) settled.step(rates(t), e.gradients[t]);

  past_steps past{.taken = before};
  std::vector<frozen_ratio> ratios;
  const bool is_frozen = before > warm_up;
  for (std::size_t l = 0; l < e.tensors.size() && what.ratios; ++l)
    ratios.push_back(
        {run.usual_ratios()[l], is_frozen ? run.factors()[l] : 1.0, is_frozen ? run.signal_scales()[l] : 1.0});
  if (std::is_same_v<Optimizer, one_bit_lamb>) past.ratios = ratios;
  if (is_frozen && what.warm_up) past.warm_up = warm_up;

  double worst = 0.0;
  slamb::run_ranks(world, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    replica mine(e.tensors, e.start);
    Optimizer optimizer(mine.parameters(), options, std::move(ranks), {.threads = 1});
    std::vector<float> now;
    for (const double p : run.parameters()) now.push_back(static_cast<float>(p));
    mine.set_values(now);
    write_moments(e.tensors, run, what.fresh_variance && is_frozen, optimizer);
    optimizer.set_steps(past);
    oracle::one_bit expected = run;
    for (std::size_t t = before; t < e.steps(); ++t) {
      expected.step(rates(t), test_support::widened(e.gradients[t]));
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(e.rates[t]);
      if (rank == 0) worst = std::max(worst, test_support::max_relative_error(mine.values(), expected.parameters()));
    }
    optimizer.compare_ranks();
  });
  return worst;
}

TEST_CASE("past steps: 1-bit LAMB goes on from an oracle, in its warm-up, at its end and behind it") {
  for (const std::uint64_t before : {2U, 4U, 5U, 9U})
    for (const int world : {1, 3}) {
      CAPTURE(before);
      CAPTURE(world);
      CHECK(difference_after<one_bit_lamb>(before, world, {.weight_decay = 0.1, .warm_up = {warm_up}}) <= tolerance);
      CHECK(difference_after<one_bit_lamb>(
                before, world, {.update_bound = std::numeric_limits<double>::infinity(), .warm_up = {warm_up}}) <=
            tolerance);
    }
}

TEST_CASE("past steps: 1-bit Adam goes on from an oracle") {
  for (const std::uint64_t before : {2U, 4U, 9U}) {
    CAPTURE(before);
    CHECK(difference_after<one_bit_adam>(before, 3, {.warm_up = {warm_up}}) <= tolerance);
  }
}

TEST_CASE("past steps: each part counts") {
  const one_bit_lamb::options_type options{
      .beta2 = 0.9, .weight_decay = 0.1, .warm_up = {warm_up}, .trust_ratio = {.factor_change = 0.5}};
  CHECK(difference_after<one_bit_lamb>(9, 3, options) <= tolerance);
  CHECK(difference_after<one_bit_lamb>(9, 3, options, {.ratios = false}) > wrong);
  CHECK(difference_after<one_bit_lamb>(9, 3, options, {.fresh_variance = false}) > wrong);
}

TEST_CASE("past steps: the number of steps of the warm-up is that of the other program") {
  std::vector<float> data(300, 1.0F), gradient(300, 0.5F);
  slamb::one_bit_adam<> optimizer(std::vector<slamb::parameter>{{data.data(), gradient.data(), data.size()}},
                                  {.warm_up = {100}});
  for (float& v : optimizer.moments(0).variance) v = 1.0F;
  optimizer.set_steps({.taken = 50, .warm_up = 20});
  CHECK(optimizer.statistics().phase == "compressed");
  CHECK(optimizer.statistics().warm_up.ended_after == 20);
  optimizer.step(0.01);
  CHECK(optimizer.statistics().step == 51);
  // A state that is loaded later brings its own.
  std::vector<float> other = data;
  slamb::one_bit_adam<> fresh(std::vector<slamb::parameter>{{other.data(), gradient.data(), other.size()}},
                              {.warm_up = {100}});
  optimizer.load_state(fresh.save_state());
  CHECK(optimizer.statistics().phase == "warm-up");
}

TEST_CASE("past steps: shards go on without a collective, if they are told all") {
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    std::vector<float> data(300, 1.0F), gradient(300, 0.5F);
    slamb::one_bit_lamb<> optimizer(
        std::vector<slamb::parameter>{{.data = data.data(), .gradient = gradient.data(), .size = data.size()}},
        {.warm_up = {100}}, slamb::sharded_communicator(slamb::self_communicator{}, std::move(ranks)), {.threads = 1});
    for (float& v : optimizer.moments(0).variance) v = 1.0F;
    const frozen_ratio ratio{.mean_ratio = 0.5, .factor = 1.1, .signal_scale = 2.0};
    optimizer.set_steps({.taken = 50, .warm_up = 20, .ratios = std::span(&ratio, 1)});
    CHECK(optimizer.statistics().phase == "compressed");
    optimizer.step(0.01);
    CHECK(optimizer.statistics().warm_up.ended_after == 20);
  });
}

// The kind of each step, by the collectives that it takes: docs/algorithms/zero_one_adam.md.
TEST_CASE("past steps: 0/1 Adam goes on with the intervals of another program") {
  constexpr std::uint64_t freeze_step = 16, scaler = 2, local_scaler = 3, clipper = 4;
  for (const std::uint64_t taken : {6U, 20U})
    slamb::run_ranks(2, [&](thread_communicator ranks) {
      std::vector<float> data(300, 1.0F), gradient(300, 0.5F);
      slamb::zero_one_adam<thread_communicator> optimizer(
          std::vector<slamb::parameter>{{data.data(), gradient.data(), data.size()}},
          {.variance_schedule = {.freeze_step = freeze_step, .update_scaler = scaler},
           .local_schedule = {.scaler = local_scaler, .clipper = clipper}},
          std::move(ranks), {.threads = 1});
      for (float& v : optimizer.moments(0).variance) v = 1.0F;
      std::uint64_t interval = 4, refreshes = 1, local = 2, local_steps = 2;
      optimizer.set_steps(
          {.taken = taken, .intervals = slamb::optimizer::past_intervals{interval, refreshes, local, local_steps}});
      bool is_local = taken + 1 > freeze_step;
      std::uint64_t before = optimizer.statistics().traffic.total().rounds;
      for (std::uint64_t tau = taken + 2; tau < taken + 26; ++tau) {
        std::uint64_t expected = 2;  // codes and their mean
        if (is_local) {
          if (tau % local != 0) expected = 0;
          if (++local_steps == local_scaler) local = std::min(2 * local, clipper), local_steps = 0;
        } else {
          if (tau % interval == 0) {
            expected = 1;  // the gradients
            if (++refreshes == scaler) interval *= 2, refreshes = 0;
          }
          is_local = tau > freeze_step;
        }
        optimizer.step(0.01);
        const std::uint64_t after = optimizer.statistics().traffic.total().rounds;
        CAPTURE(tau);
        CHECK(after - before == expected);
        before = after;
      }
    });
}

TEST_CASE(
    "past steps: what an optimizer does not have, and numbers out of range, are rejected before anything changes") {
  std::vector<float> data(300, 1.0F), gradient(300, 0.5F);
  const std::vector<slamb::parameter> tensors{{data.data(), gradient.data(), data.size()}};
  const frozen_ratio good{0.5, 1.0, 1.0};
  const auto rejected = [](slamb::optimizer& by, const past_steps& past, const char* words) {
    const std::uint64_t steps = by.statistics().step;
    const std::string said = said_by<std::invalid_argument>([&] { by.set_steps(past); });
    CAPTURE(said);
    CHECK(contains(said, words));
    CHECK(by.statistics().step == steps);
  };
  slamb::lamb<> dense(tensors);
  rejected(dense, {.taken = 9, .warm_up = 3}, "the length of a warm-up, which this optimizer does not have");
  rejected(dense, {.taken = 9, .ratios = std::span(&good, 1)}, "trust ratios of 1-bit LAMB, which");
  rejected(dense, {.taken = 9, .intervals = slamb::optimizer::past_intervals{}}, "intervals of 0/1 Adam");
  slamb::one_bit_lamb<> frozen(tensors);
  rejected(frozen, {.taken = 9, .warm_up = 0}, "a warm-up of 0 steps, but it must be in [1, 9]");
  rejected(frozen, {.taken = 9, .warm_up = 10}, "a warm-up of 10 steps, but it must be in [1, 9]");
  const std::vector<frozen_ratio> two(2, good);
  rejected(frozen, {.taken = 9, .ratios = two}, "2 trust ratios, but there are 1 tensors");
  for (const auto& [ratio, words] : {std::pair(frozen_ratio{-1.0, 1.0, 1.0}, "mean_ratio given to set_steps()"),
                                     std::pair(frozen_ratio{0.5, 0.0, 1.0}, "factor given to set_steps()"),
                                     std::pair(frozen_ratio{0.5, 1.0, 0.0}, "signal_scale given to set_steps()")})
    rejected(frozen, {.taken = 9, .ratios = std::span(&ratio, 1)}, words);
  slamb::zero_one_adam<> local(tensors);
  rejected(local, {.taken = 9, .intervals = slamb::optimizer::past_intervals{.variance = 3}}, "a power of two");
  rejected(local, {.taken = 9, .intervals = slamb::optimizer::past_intervals{.local = 0}}, ">= 1");
}

}  // namespace
}  // namespace properties_past_steps_tests
