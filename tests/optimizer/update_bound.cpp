// The bound of an element's direction: no gradients pass Adam's own, the worst reach it, and it is applied before weight decay and
// norms. Then the cases that it is for.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/one_bit_cluster.hpp"
#include "support/said.hpp"

namespace optimizer_update_bound_tests {
namespace {

using slamb::detail::update_bound;
using test_support::error_of_one_bit;
using test_support::error_of_slamb;
using test_support::experiment;
using test_support::make_experiment;
using test_support::make_structured_experiment;
using test_support::trajectory;

using ranks = slamb::thread_communicator;
using one_bit_adam = slamb::one_bit_adam<ranks>;
using one_bit_lamb = slamb::one_bit_lamb<ranks>;
using zero_one_adam = slamb::zero_one_adam<ranks>;
using slamb_k = slamb::slamb<ranks>;
using slamb_of_mean_step =
    slamb::slamb<ranks, slamb::random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>>;

constexpr double off = std::numeric_limits<double>::infinity();
constexpr double tolerance = 2e-6;  // as in the tests of the optimizers
constexpr double wrong = 2e-5;

// β1, β2, and the steps, for which the worst gradients are looked for.
struct decay_rates {
  double beta1, beta2;
};
constexpr std::array rates{decay_rates{0.9, 0.999}, decay_rates{0.9, 0.99},  decay_rates{0.95, 0.98},
                           decay_rates{0.5, 0.9},   decay_rates{0.0, 0.999}, decay_rates{0.99, 0.9999}};
constexpr std::array<std::uint64_t, 7> lengths{1, 2, 3, 10, 40, 200, 3000};

/// |m̂|/√v̂ after these gradients.
double direction_after(const std::vector<double>& gradients, decay_rates r, bool corrects_bias) {
  double m = 0.0, v = 0.0, left1 = 1.0, left2 = 1.0;
  for (const double g : gradients) {
    m = r.beta1 * m + (1.0 - r.beta1) * g;
    v = r.beta2 * v + (1.0 - r.beta2) * g * g;
    left1 *= r.beta1;
    left2 *= r.beta2;
  }
  return corrects_bias ? std::abs(m) / (1.0 - left1) / std::sqrt(v / (1.0 - left2)) : std::abs(m) / std::sqrt(v);
}

/// B_t with one pair of β.
double bound_at(double t, decay_rates r, bool corrects_bias, std::uint64_t stopped = 0, double chosen = 0.0) {
  struct options {
    double beta1, beta2, update_bound;
  };
  return slamb::detail::own_bound()
      .with(options{r.beta1, r.beta2, chosen}, stopped)
      .at(t, r.beta1, r.beta2, corrects_bias);
}

/// Gradients that make |m|/√v as large as t gradients can, found by climbing: each in turn takes its best value while the others
/// stay, until nothing changes.
std::vector<double> worst_gradients(std::uint64_t t, decay_rates r) {
  std::vector<double> a(t), b(t), g(t, 1.0);  // m = Σ a g, v = Σ b g²; g[k] is k steps old
  double of_a = 1.0 - r.beta1, of_b = 1.0 - r.beta2;
  for (std::uint64_t k = 0; k < t; ++k, of_a *= r.beta1, of_b *= r.beta2) a[k] = of_a, b[k] = of_b;
  double m = 0.0, v = 0.0;
  for (std::uint64_t k = 0; k < t; ++k) m += a[k] * g[k], v += b[k] * g[k] * g[k];
  for (int round = 0; round < 400; ++round)
    for (std::uint64_t k = 0; k < t; ++k) {
      const double rest_m = m - a[k] * g[k], rest_v = std::max(v - b[k] * g[k] * g[k], 0.0);
      if (rest_m <= 0.0) continue;
      g[k] = a[k] * rest_v / (b[k] * rest_m);  // where the derivative of (rest_m + a g)²/(rest_v + b g²) is 0
      m = rest_m + a[k] * g[k];
      v = rest_v + b[k] * g[k] * g[k];
    }
  std::reverse(g.begin(), g.end());
  return g;
}

}  // namespace

TEST_CASE("update_bound: the worst gradients of every length do not pass it, and long ones reach it") {
  for (const decay_rates r : rates)
    for (const std::uint64_t t : lengths) {
      CAPTURE(r.beta1);
      CAPTURE(r.beta2);
      CAPTURE(t);
      const std::vector<double> worst = worst_gradients(t, r);
      for (const bool corrects_bias : {false, true}) {
        const double bound = bound_at(static_cast<double>(t), r, corrects_bias);
        const double reached = direction_after(worst, r, corrects_bias);
        CHECK(reached <= bound);
        const double correction =
            corrects_bias ? std::sqrt(1.0 - std::pow(r.beta2, t)) / (1.0 - std::pow(r.beta1, t)) : 1.0;
        CHECK(reached >= 0.999 * oracle::largest_direction(r.beta1, r.beta2, t) * correction);  // they are the worst
        if (t >= 3000) CHECK(reached >= 0.999 * bound);
        // Others are further below.
        std::vector<double> other = worst;
        for (std::uint64_t k = 0; k < t; ++k) other[k] *= 0.5 + test_support::random_source(k, t).uniform();
        CHECK(direction_after(other, r, corrects_bias) <= reached * (1.0 + 1e-9));
      }
    }
}

TEST_CASE("update_bound: its values at the defaults") {
  constexpr decay_rates usual{0.9, 0.999};
  CHECK(bound_at(1e6, usual, true) == doctest::Approx(7.2705).epsilon(1e-4));
  CHECK(bound_at(1.0, usual, false) == doctest::Approx(7.2705).epsilon(1e-4));
  CHECK(bound_at(1e6, usual, false, 200) == doctest::Approx(17.075).epsilon(1e-3));
  CHECK(bound_at(1.0, usual, true) == doctest::Approx(2.2991).epsilon(1e-4));
  CHECK(bound_at(7.0, usual, true, 200, 3.0) == 3.0);
  CHECK(update_bound{}.at(7.0, 0.9, 0.999, true) == off);
  CHECK(bound_at(7.0, {0.99, 0.9}, true) == off);  // β1² ≥ β2: Adam has none
}

TEST_CASE("update_bound: SLAMB with one rank takes LAMB's steps, bit for bit, also by the worst gradients") {
  // 64 elements: the worst sequence, begun later for each, and with other signs.
  constexpr std::size_t n = 64, steps = 150;
  const std::vector<double> worst = worst_gradients(steps, {0.9, 0.999});
  experiment e = make_experiment({{n}}, 3, 1, steps);
  for (std::size_t t = 0; t < steps; ++t)
    for (std::size_t j = 0; j < n; ++j) {
      const double g = t >= j ? 10.0 * worst[t - j + j / 2] : 0.0;
      e.gradients[t][0][j] = static_cast<float>(j % 3 == 0 ? -g : g);
    }
  const trajectory of_lamb =
      test_support::train<slamb::lamb<ranks>>(e, {.trust_ratio = {.lower = 0.01, .upper = 1000.0}});
  const auto by_slamb = [&](double bound) {
    return test_support::train<slamb_k>(e, {.update_bound = bound, .compressor = {.k = 1.0}});
  };
  CHECK(by_slamb(0.0) == of_lamb);
  CHECK(by_slamb(off) == of_lamb);
  const double bound_at_end = bound_at(static_cast<double>(steps), {0.9, 0.999}, true);
  CHECK(by_slamb(0.999 * bound_at_end) != of_lamb);  // the gradients do reach it
}

TEST_CASE("update_bound: optimizers follow the oracle where it binds, also chosen, also off") {
  for (const int world : {1, 3}) {
    const auto seed = static_cast<std::uint64_t>(70 + world);
    const experiment random = make_experiment(test_support::random_model(seed, 3), seed, world, 6);
    const experiment structured = make_structured_experiment(test_support::mixed_model(seed), seed, world, 7);
    for (const double bound : {0.0, 0.6, 2.0, off}) {
      CAPTURE(world);
      CAPTURE(bound);
      CHECK(error_of_slamb<slamb_k>(random, {.update_bound = bound, .local_steps = 3, .dense_below = 16}) <= tolerance);
      CHECK(error_of_slamb<slamb_of_mean_step>(
                random, {.bias_correction = false, .update_bound = bound, .local_steps = 3, .dense_below = 16}) <=
            tolerance);
      CHECK(error_of_one_bit<one_bit_adam>(structured, {.update_bound = bound, .warm_up = {2}}) <= tolerance);
      CHECK(error_of_one_bit<one_bit_lamb>(structured, {.update_bound = bound, .warm_up = {3}}) <= tolerance);
      if (bound == 0.6)
        continue;  // local updates at a bound this small have sums of 0, whose signs depend on the last digit
      CHECK(error_of_one_bit<zero_one_adam>(
                structured, {.update_bound = bound, .variance_schedule = {.freeze_step = 3, .update_scaler = 1}}) <=
            tolerance);
    }
  }
}

TEST_CASE("update_bound: the comparison with the oracle finds another bound, or none") {
  const auto check = []<class Optimizer>(typename Optimizer::options_type given) {
    experiment e = make_structured_experiment({{300}, {129}, {40}}, 77, 3, 8);
    test_support::settle(e, test_support::oracle_at_start(e, given));
    const trajectory reached = test_support::train<Optimizer>(e, given);
    const auto error_with = [&](double bound) {
      auto other = given;
      other.update_bound = bound;
      return test_support::worst_one_bit_error(e, reached, test_support::oracle_at_start(e, other));
    };
    CHECK(error_with(given.update_bound) <= tolerance);
    CHECK(error_with(1.05 * given.update_bound) > wrong);
    CHECK(error_with(off) > wrong);
  };
  check.operator()<one_bit_adam>({.update_bound = 1.0, .warm_up = {3}});
  check.operator()<one_bit_lamb>({.update_bound = 1.0, .warm_up = {3}});
  check.operator()<zero_one_adam>({.update_bound = 2.0, .variance_schedule = {.freeze_step = 3, .update_scaler = 1}});
}

// An oracle of LAMB's step that bounds after the sums in place of before.
TEST_CASE("update_bound: it is applied before the norms") {
  const std::size_t n = 400;
  experiment e = make_experiment({{n}}, 5, 1, 1);
  const double bound = 0.3;
  const trajectory reached =
      test_support::train<slamb_k>(e, {.weight_decay = 0.1, .update_bound = bound, .compressor = {.k = 1.0}});
  const auto error_of = [&](bool before_norms) {
    double of_p = 0.0, of_u = 0.0, worst = 0.0, largest = 0.0;
    std::vector<double> u(n);
    for (std::size_t j = 0; j < n; ++j) {
      const double p = e.start[j], g = e.gradients[0][0][j];
      const double w = g / (std::abs(g) + 1e-6), bounded = std::clamp(w, -bound, bound);
      u[j] = bounded + 0.1 * p;
      of_p += p * p;
      of_u += std::pow((before_norms ? bounded : w) + 0.1 * p, 2.0);
    }
    for (std::size_t j = 0; j < n; ++j) {
      const double expected = e.start[j] - e.rates[0][0] * std::sqrt(of_p / of_u) * u[j];
      worst = std::max(worst, std::abs(expected - static_cast<double>(reached[0][0][j])));
      largest = std::max(largest, std::abs(expected));
    }
    return worst / largest;
  };
  CHECK(error_of(true) <= tolerance);
  CHECK(error_of(false) > wrong);
}

TEST_CASE("update_bound: a variance that was frozen early does not make it bind") {
  // Gradients of equal size: m/√v = 1/√(1 − β2^5) = 14.2 after a warm-up of 5 steps, and B_5 = 103.
  experiment e = make_experiment({{100}}, 8, 1, 60);
  for (auto& of_step : e.gradients)
    for (std::size_t j = 0; j < of_step[0].size(); ++j) of_step[0][j] = j % 2 == 0 ? 0.5F : -2.0F;
  const auto with = [&](double bound) {
    return test_support::train<one_bit_adam>(e, {.update_bound = bound, .warm_up = {5}});
  };
  CHECK(with(0.0) == with(off));
  CHECK(with(7.2706) != with(off));  // without the correction of the freeze it would
}

TEST_CASE("update_bound: moments that were made with other betas do not make it bind") {
  // Gradients of equal size are far from the worst. B of the new β2 is 2.2, and that of the old one 7.3.
  experiment e = make_experiment({{.size = 100, .options = {.adapt = false}}}, 8, 1, 80);
  for (auto& of_step : e.gradients)
    for (std::size_t j = 0; j < of_step[0].size(); ++j) of_step[0][j] = j % 2 == 0 ? 0.5F : -2.0F;
  const auto train = [&]<class Optimizer>(typename Optimizer::options_type options) {
    test_support::replica mine(e.tensors, e.start);
    Optimizer optimizer(mine.parameters(), options);
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][0]);
      if (t == 50) optimizer.set_options({.beta2 = 0.99});
      optimizer.step(1e-3);
    }
    return mine.values();
  };
  CHECK(train.operator()<slamb::slamb<>>({}) == train.operator()<slamb::slamb<>>({.update_bound = off}));
  CHECK(train.operator()<slamb::one_bit_adam<>>({.warm_up = {5}}) ==
        train.operator()<slamb::one_bit_adam<>>({.update_bound = off, .warm_up = {5}}));
}

TEST_CASE("update_bound: values out of range are rejected") {
  test_support::replica mine({{8}}, std::vector<float>(8, 1.0F));
  for (const double bound : {-1.0, -0.5, 1e-39, 1e39, std::numeric_limits<double>::quiet_NaN(), -off}) {
    const auto said = test_support::said_by<std::invalid_argument>(
        [&] { slamb::slamb<>(mine.parameters(), {.update_bound = bound}); });
    CHECK(said.find("update_bound = ") != std::string::npos);
    CHECK(said.find("it must be in [1.2e-38, 3.4e38], or 0 for Adam's own bound, or inf for none") !=
          std::string::npos);
    CHECK_THROWS_AS((slamb::one_bit_lamb<>(mine.parameters(), {.update_bound = bound})), std::invalid_argument);
    CHECK_THROWS_AS((slamb::zero_one_adam<>(mine.parameters(), {.update_bound = bound})), std::invalid_argument);
  }
}

// One rank has a gradient for a row that no other has had so far, as of a rare word.
TEST_CASE("update_bound: in SLAMB an element of one rank alone does not stop its tensor") {
  constexpr std::size_t row = 16, rows = 200, steps = 60, rare_at = 40;
  const auto mean_step_after = [&](double bound, bool has_rare) {
    experiment e = make_experiment({{row * rows}}, 9, 2, steps);
    for (std::size_t t = 0; t < steps; ++t)
      for (auto& of_rank : e.gradients[t]) std::fill(of_rank.end() - row, of_rank.end(), 0.0F);
    if (has_rare) std::fill(e.gradients[rare_at][1].end() - row, e.gradients[rare_at][1].end(), 0.01F);
    test_support::use_one_rate(e, 1e-3);
    const trajectory reached = test_support::train<slamb_k>(
        e, {.weight_decay = 0.0, .update_bound = bound, .local_steps = 50, .dense_below = 0});
    double sum = 0.0;
    for (std::size_t t = rare_at + 1; t < rare_at + 9; ++t)
      for (std::size_t j = 0; j < row * (rows - 1); ++j)
        sum += std::abs(static_cast<double>(reached[t][0][j]) - static_cast<double>(reached[t - 1][0][j]));
    return sum;
  };
  const double without = mean_step_after(0.0, false);
  CHECK(mean_step_after(0.0, true) >= 0.7 * without);
  CHECK(mean_step_after(0.0, true) <= 1.3 * without);
  CHECK(mean_step_after(off, true) < 0.1 * mean_step_after(off, false));  // what it is for
}

}  // namespace optimizer_update_bound_tests
