// set_options(): β, ε and weight decay that change between steps, against an oracle in double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"
#include "support/thread_nodes.hpp"

namespace properties_changed_options_tests {
namespace {

using test_support::experiment;
using test_support::recipe;
using test_support::replica;
using test_support::said_by;
using test_support::same_bits;

/// The options of one step.
struct schedule {
  double beta1, beta2, epsilon;
  std::vector<double> weight_decay;  // [tensors]
};

/// Options that differ from step to step, as a cycle of β1 and a decay of λ would make them.
schedule options_at(std::size_t t) {
  const double x = static_cast<double>(t);
  return {
      0.95 - 0.02 * static_cast<double>(t % 5), 0.99 + 0.001 * x, 1e-6 * (1.0 + x), {0.1 / (1.0 + x), 0.02 * x, 0.0}};
}

experiment small_experiment(int world) {
  experiment e = test_support::make_experiment({{300}, {17, 5}, {40, 40}}, 41, world, 8);
  test_support::use_one_rate(e, 0.01);
  return e;
}

/// AdamW or LAMB in double precision, with the options of each step: docs/algorithms/lamb.md.
std::vector<double> oracle(const experiment& e, bool adapts) {
  std::vector<double> p(e.start.begin(), e.start.end()), m(p.size()), v(p.size());
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const schedule now = options_at(t);
    const double steps = static_cast<double>(t + 1);
    std::size_t first = 0;
    for (std::size_t l = 0; l < e.tensors.size(); ++l) {
      const std::size_t size = test_support::total_size({e.tensors[l]});
      std::vector<double> u(size);
      double of_p = 0.0, of_u = 0.0;
      for (std::size_t j = 0; j < size; ++j) {
        const std::size_t i = first + j;
        double g = 0.0;
        for (const std::vector<float>& of_rank : e.gradients[t]) g += static_cast<double>(of_rank[i]) / e.world;
        m[i] = now.beta1 * m[i] + (1.0 - now.beta1) * g;
        v[i] = now.beta2 * v[i] + (1.0 - now.beta2) * g * g;
        const double corrected_m = m[i] / (1.0 - std::pow(now.beta1, steps));
        const double corrected_v = v[i] / (1.0 - std::pow(now.beta2, steps));
        u[j] = corrected_m / (std::sqrt(corrected_v) + now.epsilon) + now.weight_decay[l] * p[i];
        of_p += p[i] * p[i];
        of_u += u[j] * u[j];
      }
      const double ratio = adapts ? std::sqrt(of_p) / std::sqrt(of_u) : 1.0;
      for (std::size_t j = 0; j < size; ++j) p[first + j] -= e.rates[t][0] * ratio * u[j];
      first += size;
    }
  }
  return p;
}

/// Trains with the options of each step. The optimizer is constructed with other options.
/// @param ranks  a Communicator of one rank of the experiment
template <class Optimizer, class Communicator>
std::vector<float> trained(const experiment& e, Communicator ranks, std::size_t rank) {
  replica mine(e.tensors, e.start);
  Optimizer optimizer(mine.parameters(), {.beta1 = 0.5, .beta2 = 0.6, .epsilon = 1.0, .weight_decay = 7.0},
                      std::move(ranks));
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const schedule now = options_at(t);
    mine.set_gradient(e.gradients[t][rank]);
    optimizer.set_options(
        {.beta1 = now.beta1, .beta2 = now.beta2, .epsilon = now.epsilon, .weight_decay = now.weight_decay});
    optimizer.step(e.rates[t][0]);
  }
  return mine.values();
}

double distance(const std::vector<float>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double most = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double apart = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

}  // namespace

TEST_CASE("changed options: AdamW and LAMB follow the oracle, with one rank and with two") {
  for (const int world : {1, 2}) {
    const experiment e = small_experiment(world);
    slamb::run_ranks(world, [&](slamb::thread_communicator ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      const auto got = trained<slamb::adamw<slamb::thread_communicator>>(e, std::move(ranks), rank);
      CHECK(distance(got, oracle(e, false)) < 2e-6);
    });
    slamb::run_ranks(world, [&](slamb::thread_communicator ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      const auto got = trained<slamb::lamb<slamb::thread_communicator>>(e, std::move(ranks), rank);
      CHECK(distance(got, oracle(e, true)) < 2e-6);
    });
  }
  // The two oracles differ, and by far more than the tolerance.
  const experiment e = small_experiment(1);
  const std::vector<double> of_lamb = oracle(e, true);
  CHECK(distance({of_lamb.begin(), of_lamb.end()}, oracle(e, false)) > 1e-3);
}

TEST_CASE("changed options: kernels follow the oracle too") {
  const experiment e = small_experiment(1);
  using on_kernels = slamb::lamb<slamb::self_communicator, slamb::emulated_backend>;
  CHECK(distance(trained<on_kernels>(e, slamb::self_communicator{}, 0), oracle(e, true)) < 2e-6);
}

TEST_CASE("changed options: nodes of two ranks read the changed weight decays") {
  const experiment e = small_experiment(4);
  test_support::thread_nodes nodes({2, 2});
  nodes.run([&](test_support::nodes_of_threads ranks, std::size_t rank) {
    const auto got = trained<slamb::lamb<test_support::nodes_of_threads>>(e, std::move(ranks), rank);
    CHECK(distance(got, oracle(e, true)) < 2e-6);
  });
}

TEST_CASE("changed options: the same options again change no bits, in every recipe") {
  for (const recipe& r : test_support::every_recipe()) {
    CAPTURE(r.name);
    experiment e = test_support::make_experiment({{300}, {17, 1}}, 32, 2, test_support::steps_of_recipes);
    test_support::use_one_rate(e, 0.01);
    std::vector<std::vector<float>> reached[2] = {{{}, {}}, {{}, {}}};
    for (const bool sets : {false, true})
      slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
        const auto rank = static_cast<std::size_t>(ranks.rank());
        replica mine(e.tensors, e.start);
        auto optimizer =
            r.make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
        for (std::size_t t = 0; t < e.steps(); ++t) {
          mine.set_gradient(e.gradients[t][rank]);
          if (sets) optimizer.set_options({.beta1 = 0.9, .beta2 = 0.999});
          if (sets) optimizer.set_options({});
          optimizer.step(0.01);
        }
        reached[sets ? 1 : 0][rank] = mine.values();
      });
    CHECK(same_bits(reached[0][0], reached[1][0]));
    CHECK(same_bits(reached[0][1], reached[1][1]));
  }
}

TEST_CASE("changed options: wrong ones are rejected by name, and nothing has changed then") {
  const experiment e = small_experiment(1);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> two{0.1, 0.1}, negative{0.1, 0.1, -1.0};
  replica mine(e.tensors, e.start), other(e.tensors, e.start);
  slamb::lamb<> optimizer(mine.parameters()), untouched(other.parameters());
  using changes = slamb::optimizer::option_changes;
  const std::vector<std::pair<changes, std::string>> wrong = {
      {{.beta1 = 1.0}, "slamb: beta1 = 1, but it must be in [0, 1)"},
      {{.beta2 = -0.1}, "slamb: beta2 = -0.1, but it must be in [0, 1)"},
      {{.epsilon = 0.0}, "slamb: epsilon = 0, but it must be in [1.2e-38, 3.4e38]"},
      {{.epsilon = nan}, "slamb: epsilon = nan, but it must be in [1.2e-38, 3.4e38]"},
      {{.beta1 = 0.5, .weight_decay = two}, "slamb: set_options() was given 2 weight decays, but there are 3 tensors"},
      {{.beta1 = 0.5, .weight_decay = negative}, "slamb: tensor 2's weight_decay = -1, but it must be in [0, 3.4e38]"}};
  for (const auto& one : wrong)
    CHECK(said_by<std::invalid_argument>([&] { optimizer.set_options(one.first); }) == one.second);
  for (std::size_t t = 0; t < 3; ++t) {
    mine.set_gradient(e.gradients[t][0]);
    other.set_gradient(e.gradients[t][0]);
    optimizer.step(0.01);
    untouched.step(0.01);
  }
  CHECK(same_bits(mine.values(), other.values()));

  optimizer.begin_step(0.01);
  CHECK_THROWS_WITH_AS(optimizer.set_options({.beta1 = 0.5}), doctest::Contains("set_options()"), std::logic_error);
  optimizer.finish_step();
}

}  // namespace properties_changed_options_tests
