// AdamW and LAMB compared with the oracle: all switches and options, sizes, groups and numbers of ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace optimizer_lamb_tests {
namespace {

using test_support::error_of_dense;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;

using adamw = slamb::adamw<slamb::thread_communicator>;
using lamb = slamb::lamb<slamb::thread_communicator>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::array worlds{1, 2, 3, 4, 7, 8};

// Errors are 1e-7 of max |p|. Without momentum they are 1.5e-6, because the mean of gradients that cancel has fewer digits.
constexpr double tolerance = 4e-6;

/// Settings that differ from the defaults in one or more switches.
template <class Optimizer>
std::vector<std::pair<std::string, typename Optimizer::options_type>> variants() {
  using options = typename Optimizer::options_type;
  std::vector<std::pair<std::string, options>> all{
      {"defaults", {}},
      {"decay rates", {.beta1 = 0.7, .beta2 = 0.95}},
      {"no momentum", {.beta1 = 0.0, .beta2 = 0.9}},
      {"large epsilon", {.epsilon = 0.1}},
      {"no weight decay", {.weight_decay = 0.0}},
      {"weight decay", {.weight_decay = 0.3}},
      {"no bias correction", {.weight_decay = 0.1, .bias_correction = false}},
      {"clipped gradient", {.epsilon = 1e-3, .max_gradient_norm = 1.0}},
      {"unclipped gradient", {.epsilon = 1e-3, .max_gradient_norm = 1e6}},
      {"infinite gradient norm", {.epsilon = 1e-3, .max_gradient_norm = infinity}},
      {"overflow unchecked", {.max_gradient_norm = 2.0, .skip_non_finite = false}},
  };
  if constexpr (requires(options o) { o.trust_ratio.upper; }) {
    all.push_back({"clamped above", {.trust_ratio = {.lower = 0.01, .upper = 0.05}}});
    all.push_back({"clamped below", {.trust_ratio = {.lower = 0.5, .upper = 10.0}}});
    all.push_back({"clamped to one value", {.trust_ratio = {.lower = 0.2, .upper = 0.2}}});
    all.push_back({"apex", {.weight_decay = 0.0, .trust_ratio = {.adapt_without_weight_decay = false}}});
    all.push_back({"apex with decay", {.trust_ratio = {.adapt_without_weight_decay = false}}});
  }
  return all;
}

template <class Optimizer>
void check_variants() {
  for (const int world : worlds) {
    const auto seed = static_cast<std::uint64_t>(world);
    const experiment e = make_experiment(test_support::random_model(seed, 8), seed, world, 4);
    for (const auto& variant : variants<Optimizer>()) {
      CAPTURE(world);
      CAPTURE(variant.first);
      CHECK(error_of_dense<Optimizer>(e, variant.second) <= tolerance);
    }
  }
}

}  // namespace

TEST_CASE("adamw: follows the oracle for all switches and numbers of ranks") { check_variants<adamw>(); }

TEST_CASE("lamb: follows the oracle for all switches and numbers of ranks") { check_variants<lamb>(); }

TEST_CASE("lamb: the comparison with the oracle can fail") {
  const experiment e = make_experiment(test_support::random_model(2, 8), 2, 2, 4);
  const lamb::options_type given{.weight_decay = 0.1};
  const auto reached = test_support::train<lamb>(e, given);
  const auto error_with = [&](auto change) {
    lamb::options_type other = given;
    experiment changed = e;
    change(other, changed.tensors);
    const oracle::adam_family run(test_support::oracle_tensors(changed.tensors, other.weight_decay),
                                  test_support::widened(e.start), test_support::oracle_settings(other));
    return test_support::worst_error(changed, reached, run);
  };
  CHECK(error_with([](auto&, auto&) {}) <= tolerance);
  CHECK(error_with([](auto& o, auto&) { o.beta1 = 0.89; }) > 1e-4);
  CHECK(error_with([](auto& o, auto&) { o.beta2 = 0.99; }) > 1e-4);
  CHECK(error_with([](auto& o, auto&) { o.epsilon = 1e-2; }) > 1e-4);
  CHECK(error_with([](auto& o, auto&) { o.weight_decay = 0.0; }) > 1e-4);
  CHECK(error_with([](auto& o, auto&) { o.bias_correction = false; }) > 1e-4);
  CHECK(error_with([](auto& o, auto&) { o.trust_ratio.upper = 0.01; }) > 1e-4);
  CHECK(error_with([](auto&, auto& l) { l[4].options.learning_rate_factor *= 1.5; }) > 1e-4);
  CHECK(error_with([](auto&, auto& l) { l[4].options.adapt = !l[4].options.adapt; }) > 1e-4);
  CHECK(error_with([](auto&, auto& l) { l[4].options.group = (l[4].options.group + 1) % 3; }) > 1e-4);
}

TEST_CASE("lamb: follows the oracle over a tensor of many tiles") {
  experiment e = make_experiment({{1'000'003}, {15}, {1'000, 1}}, 5, 2, 2);
  CHECK(error_of_dense<lamb>(e, {.max_gradient_norm = 100.0}) <= tolerance);
}

TEST_CASE("lamb: follows the oracle if a norm is zero") {
  model tensors{{16}, {17}, {300}, {300}};
  tensors[3].options.weight_decay = 0.0;
  experiment e = make_experiment(tensors, 6, 2, 3);
  std::fill_n(e.start.begin(), 16 + 17, 0.0F);  // ‖p‖ = 0
  for (auto& ranks : e.gradients)
    for (auto& gradient : ranks) {
      std::fill_n(gradient.begin(), 16, 0.0F);                  // and so ‖u‖ = 0
      std::fill(gradient.begin() + 333, gradient.end(), 0.0F);  // ‖u‖ = 0, because λ is 0 as well
    }
  CHECK(error_of_dense<lamb>(e, {}) <= tolerance);
  const auto reached = test_support::train<lamb>(e, {});
  for (std::size_t i = 0; i < 16; ++i) CHECK(reached.back()[0][i] == 0.0F);
  for (std::size_t i = 333; i < e.start.size(); ++i) REQUIRE(reached.back()[0][i] == e.start[i]);
}

TEST_CASE("lamb: follows the oracle over gradients of very different size") {
  for (const double scale : {1e-15, 1e-6, 1e6, 1e15}) {
    experiment e = make_experiment({{9000}, {17}}, 7, 2, 3);
    for (auto& ranks : e.gradients)
      for (auto& gradient : ranks)
        for (float& x : gradient) x = static_cast<float>(x * scale);
    CAPTURE(scale);
    CHECK(error_of_dense<lamb>(e, {.epsilon = 1e-3 * scale}) <= tolerance);
    CHECK(error_of_dense<adamw>(e, {.epsilon = 1e-3 * scale}) <= tolerance);
  }
}

TEST_CASE(
    "adamw: a finite gradient whose square is no float counts as the largest that has one, if nothing is skipped") {
  const double largest = std::sqrt(static_cast<double>(std::numeric_limits<float>::max()));
  for (const float huge : {2e19F, -2e19F, 1e30F}) {
    CAPTURE(huge);
    replica mine({{3}}, std::vector<float>(3, 1.0F));
    slamb::adamw<> optimizer(mine.parameters(), {.weight_decay = 0.0, .skip_non_finite = false});
    double p = 1.0, m = 0.0, v = 0.0;
    for (int t = 1; t <= 5; ++t) {
      const double g = t == 2 ? static_cast<double>(huge) : 0.5;
      mine.set_gradient(std::vector<float>{0.5F, static_cast<float>(g), 0.5F});
      optimizer.step(0.01);
      const double counted = std::clamp(g, -largest, largest);
      m = 0.9 * m + 0.1 * counted;
      v = 0.999 * v + 0.001 * counted * counted;
      p -= 0.01 * m / (1.0 - std::pow(0.9, t)) / (std::sqrt(v / (1.0 - std::pow(0.999, t))) + 1e-8);
      CAPTURE(t);
      CHECK(mine.values()[1] == doctest::Approx(p).epsilon(1e-5));
      CHECK(mine.values()[0] ==
            doctest::Approx(1.0 - 0.01 * t).epsilon(1e-5));  // others take Adam's steps of constant gradients
      CHECK(mine.values()[2] == mine.values()[0]);
    }
    CHECK(optimizer.statistics().skipped_steps == 0);
  }
}

namespace {

// The parameters after steps by gradients up to the largest that a step accepts.
template <class Optimizer>
std::vector<float> after_largest_gradients(typename Optimizer::options_type options) {
  constexpr float largest = 0x1.fffffep63F;  // its square is a float below the largest
  replica mine({{40}, {3, 7}}, std::vector<float>(61, 1.0F));
  Optimizer optimizer(mine.parameters(), options);
  for (int t = 1; t <= 6; ++t) {
    std::vector<float> gradient(61);
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = t % 3 == 0 ? 1e-3F * static_cast<float>(i) : (i % 2 == 0 ? largest : -0.5F * largest);
    mine.set_gradient(gradient);
    optimizer.step(0.01);
  }
  CHECK(optimizer.statistics().skipped_steps == 0);
  return mine.values();
}

}  // namespace

TEST_CASE("lamb, adamw: every gradient that passes the check gives the bits of a step without a check") {
  for (const double c : {std::numeric_limits<double>::infinity(), 1.0}) {
    CAPTURE(c);
    CHECK(after_largest_gradients<slamb::lamb<>>({.max_gradient_norm = c, .skip_non_finite = true}) ==
          after_largest_gradients<slamb::lamb<>>({.max_gradient_norm = c, .skip_non_finite = false}));
    CHECK(after_largest_gradients<slamb::adamw<>>({.max_gradient_norm = c, .skip_non_finite = true}) ==
          after_largest_gradients<slamb::adamw<>>({.max_gradient_norm = c, .skip_non_finite = false}));
  }
}

TEST_CASE("lamb: a step counts with no tensors, or only empty ones") {
  for (const model& tensors : {model{}, model{{0}, {0, 1}}}) {
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      replica mine(tensors, {});
      lamb optimizer(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
      optimizer.step(0.1);
      optimizer.step(0.1);
      CHECK(optimizer.statistics(true).step == 2);
      CHECK(optimizer.statistics(true).norm.parameters == 0.0);
    });
  }
}

TEST_CASE("lamb: the defaults are the documented ones") {
  const slamb::lamb<>::options_type options;
  CHECK(options.beta1 == 0.9);
  CHECK(options.beta2 == 0.999);
  CHECK(options.epsilon == 1e-6);
  CHECK(options.weight_decay == 0.01);
  CHECK(options.bias_correction);
  CHECK(options.max_gradient_norm == infinity);
  CHECK(options.skip_non_finite);
  CHECK(options.trust_ratio.lower == 0.0);
  CHECK(options.trust_ratio.upper == infinity);
  CHECK(options.trust_ratio.adapt_without_weight_decay);
  CHECK(slamb::adamw<>::options_type{}.epsilon == 1e-8);
}

TEST_CASE("lamb: a single rank needs no named communicator or backend") {
  const experiment e = make_experiment(test_support::random_model(9, 5), 9, 1, 3);
  const auto expected = test_support::train<lamb>(e, {.weight_decay = 0.2});
  replica mine(e.tensors, e.start);
  slamb::lamb<> optimizer(mine.parameters(), {.weight_decay = 0.2});
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][0]);
    optimizer.step(e.rates[t]);
    CHECK(test_support::same_bits(mine.values(), expected[t][0]));
  }
  CHECK(mine.intact());
}

TEST_CASE("lamb: one rate for all groups equals that rate for each") {
  experiment e = make_experiment(test_support::random_model(10, 5), 10, 2, 3);
  experiment each = e;
  test_support::use_one_rate(e, 0.02);
  for (auto& rates : each.rates) rates = {0.02, 0.02, 0.02};
  CHECK(test_support::same_bits(test_support::train<lamb>(e, {}), test_support::train<lamb>(each, {})));
}

TEST_CASE("lamb: synchronize_parameters does nothing") {
  const experiment e = make_experiment({{100}}, 11, 1, 1);
  replica mine(e.tensors, e.start);
  slamb::lamb<> optimizer(mine.parameters());
  optimizer.synchronize_parameters();
  CHECK(test_support::same_bits(mine.values(), e.start));
  CHECK(optimizer.statistics().traffic.total().rounds == 0);
}

TEST_CASE("set_gradient and set_gradients: the next step reads the new gradients") {
  const experiment e = make_experiment({{100}, {0}, {33, 1}}, 12, 1, 2);
  const auto expected = test_support::train<lamb>(e, {});
  for (const bool at_once : {false, true}) {
    CAPTURE(at_once);
    replica mine(e.tensors, e.start);
    slamb::lamb<> optimizer(mine.parameters());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      const float* const first = e.gradients[t][0].data();
      const std::vector<const float*> all{first, nullptr, first + 100};
      if (at_once)
        optimizer.set_gradients(all);
      else
        for (std::size_t i = 0; i < all.size(); ++i) optimizer.set_gradient(i, all[i]);
      optimizer.step(e.rates[t]);
      CHECK(test_support::same_bits(mine.values(), expected[t][0]));
    }
  }
}

TEST_CASE("replica: finds an overwritten guard or gradient") {
  const model tensors{{3}, {4, 1}};
  const std::vector<float> start(7, 1.0F);
  for (std::size_t i = 0; i < replica(tensors, start).raw_data().size(); ++i) {
    replica mine(tensors, start);
    const bool is_guard = std::isnan(mine.raw_data()[i]);
    mine.raw_data()[i] = 2.0F;
    CHECK(mine.intact() != is_guard);
    replica other(tensors, start);
    other.raw_gradient()[i] = 2.0F;
    CHECK_FALSE(other.intact());
  }
}

}  // namespace optimizer_lamb_tests
