// Clipping in recipes that exchange other things than the dense gradient: a step must be as one on gradients that the caller has
// clipped, by the factor of docs/how-to/clip.md, computed here in double precision.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace properties_clipping_tests {
namespace {

using slamb::thread_communicator;
using test_support::experiment;
using test_support::maker_of;
using test_support::optimizer_maker;
using test_support::trajectory;

constexpr double c = 0.7;
constexpr int world = 3;
constexpr std::size_t steps = 12;

double square_of(const std::vector<float>& gradient) {
  double sum = 0.0;
  for (const float g : gradient) sum += static_cast<double>(g) * static_cast<double>(g);
  return sum;
}

/// The norm that clips rank `rank` at step t.
enum class norm_of { own, all, mean };
double norm(const experiment& e, std::size_t t, std::size_t rank, norm_of what) {
  const auto& of_ranks = e.gradients[t];
  if (what == norm_of::own) return std::sqrt(square_of(of_ranks[rank]));
  double sum = 0.0;
  if (what == norm_of::all) {
    for (const auto& gradient : of_ranks) sum += square_of(gradient) / static_cast<double>(e.world);
  } else {
    for (std::size_t j = 0; j < of_ranks[0].size(); ++j) {
      double mean = 0.0;
      for (const auto& gradient : of_ranks) mean += static_cast<double>(gradient[j]) / static_cast<double>(e.world);
      sum += mean * mean;
    }
  }
  return std::sqrt(sum);
}

/// The experiment with gradients that are clipped already. In the first `dense` steps by the norm of their mean.
/// @param is_dense  is_dense(t): step t = 0, 1, … exchanges dense gradients
experiment clipped(experiment e, bool locally, const std::function<bool(std::size_t)>& is_dense) {
  const experiment given = e;
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (std::size_t rank = 0; rank < e.gradients[t].size(); ++rank) {
      const norm_of what = is_dense(t) ? norm_of::mean : locally ? norm_of::own : norm_of::all;
      const double factor = std::min(1.0, c / (norm(given, t, rank, what) + 1e-6));
      for (float& g : e.gradients[t][rank]) g *= static_cast<float>(factor);
    }
  return e;
}

/// Gradients of which about half exceed the norm c.
experiment made(std::uint64_t seed, int ranks) {
  experiment e = test_support::make_experiment({{300}, {17, 1}, {9100}}, seed, ranks, steps);
  test_support::use_one_rate(e, 0.01);
  for (std::size_t t = 0; t < steps; ++t)
    for (auto& gradient : e.gradients[t]) {
      const double size = std::sqrt(square_of(gradient));
      const double wanted = t % 2 == 0 ? 0.4 * c : 3.0 * c;
      for (float& g : gradient) g *= static_cast<float>(wanted / size * (&gradient == &e.gradients[t][0] ? 2.0 : 1.0));
    }
  return e;
}

double largest_difference(const trajectory& a, const trajectory& b) {
  double most = 0.0;
  for (std::size_t t = 0; t < a.size(); ++t)
    for (std::size_t rank = 0; rank < a[t].size(); ++rank)
      for (std::size_t j = 0; j < a[t][rank].size(); ++j)
        most = std::max(most, std::abs(static_cast<double>(a[t][rank][j]) - static_cast<double>(b[t][rank][j])));
  return most;
}

template <class Optimizer>
void check(const typename Optimizer::options_type& options, const std::function<bool(std::size_t)>& is_dense) {
  for (const int ranks : {1, world})
    for (const bool locally : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(locally);
      const experiment e = made(51, ranks);
      auto clips = options;
      clips.max_gradient_norm = c;
      clips.clip_locally = locally;
      const trajectory expected = test_support::train<Optimizer>(clipped(e, locally, is_dense), options);
      CHECK(largest_difference(test_support::train<Optimizer>(e, clips), expected) <= 3e-6);
      // Without clipping, or with the other norm, other parameters are reached.
      CHECK(largest_difference(test_support::train<Optimizer>(e, options), expected) > 1e-4);
      clips.clip_locally = !locally;
      if (ranks > 1) CHECK(largest_difference(test_support::train<Optimizer>(e, clips), expected) > 1e-4);
    }
}

const std::function<bool(std::size_t)> never = [](std::size_t) { return false; };

}  // namespace

TEST_CASE("clipping: SLAMB, 1-bit Adam, 1-bit LAMB and 0/1 Adam act as on clipped gradients") {
  using slamb_of_all = slamb::slamb<thread_communicator>;
  check<slamb_of_all>({.local_steps = 5, .dense_below = 20}, never);
  const std::function<bool(std::size_t)> in_warm_up = [](std::size_t t) { return t < 4; };
  check<slamb::one_bit_adam<thread_communicator>>({.epsilon = 1e-3, .warm_up = {4}}, in_warm_up);
  check<slamb::one_bit_lamb<thread_communicator>>({.epsilon = 1e-3, .warm_up = {4}}, in_warm_up);
  // τ = 2, 3, 4 and 6 refresh the variance: support/every_recipe.cpp
  check<slamb::zero_one_adam<thread_communicator>>({.epsilon = 1e-3,
                                                    .variance_schedule = {.freeze_step = 6, .update_scaler = 2},
                                                    .local_schedule = {.scaler = 2, .clipper = 4}},
                                                   [](std::size_t t) { return t == 0 || t == 1 || t == 2 || t == 4; });
}

TEST_CASE("clipping: the norm before clipping is reported by every recipe") {
  const auto check_norm = [](const optimizer_maker& make, bool locally) {
    const experiment e = made(52, 2);
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      test_support::replica mine(e.tensors, e.start);
      auto optimizer =
          make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
      for (std::size_t t = 0; t < 3; ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        optimizer.step(0.01);
        const double expected = norm(e, t, rank, locally ? norm_of::own : norm_of::all);
        REQUIRE(optimizer.statistics().gradient_norm.has_value());
        CHECK(*optimizer.statistics().gradient_norm == doctest::Approx(expected).epsilon(1e-6));
      }
    });
  };
  for (const bool locally : {false, true})
    check_norm(maker_of<slamb::slamb<thread_communicator>>({.max_gradient_norm = c, .clip_locally = locally}), locally);
}

TEST_CASE("clipping: a norm beyond the floats skips the step on all ranks") {
  experiment e = made(53, 2);
  for (float& g : e.gradients[0][1]) g = 1e18F;  // each is finite, and so is its square
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    test_support::replica mine(e.tensors, e.start);
    slamb::slamb<thread_communicator> optimizer(mine.parameters(), {.max_gradient_norm = c}, std::move(communicator));
    for (std::size_t t = 0; t < 2; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(0.01);
    }
    CHECK(optimizer.statistics().skipped_steps == 1);
    CHECK(optimizer.statistics().step == 1);
  });
}

TEST_CASE("clipping: takes one collective of one value, and none by each rank's own norm") {
  const auto rounds_of = [](double norm, bool locally) {
    const experiment e = made(54, 2);
    std::uint64_t rounds = 0;
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const bool is_first = communicator.rank() == 0;
      test_support::replica mine(e.tensors, e.start);
      slamb::slamb<thread_communicator> optimizer(
          mine.parameters(), {.max_gradient_norm = norm, .clip_locally = locally, .local_steps = 0},
          std::move(communicator));
      mine.set_gradient(e.gradients[0][0]);
      optimizer.step(0.01);
      if (is_first) rounds = optimizer.statistics().traffic[slamb::collective::all_reduce].rounds;
    });
    return rounds;
  };
  const std::uint64_t without = rounds_of(std::numeric_limits<double>::infinity(), false);
  CHECK(rounds_of(c, false) == without + 1);
  CHECK(rounds_of(c, true) == without);
}

}  // namespace properties_clipping_tests
