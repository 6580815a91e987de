// 1-bit Adam and 1-bit LAMB compared with the oracle: worlds, scales, tensors of all sizes and options, lengths of the warm-up,
// and properties that hold for all values.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/one_bit_cluster.hpp"
#include "support/watching_communicators.hpp"

namespace optimizer_one_bit_tests {
namespace {

using slamb::scale_sharing;
using slamb::thread_communicator;
using test_support::error_of_one_bit;
using test_support::experiment;
using test_support::make_structured_experiment;
using test_support::model;
using test_support::oracle_at_start;
using test_support::replica;
using test_support::trajectory;

using l1_sign = slamb::basic_sign<slamb::segment_scale::l1>;

using adam = slamb::one_bit_adam<thread_communicator>;
using lamb = slamb::one_bit_lamb<thread_communicator>;
using l1_adam = slamb::one_bit_adam<thread_communicator, l1_sign>;
using l1_lamb = slamb::one_bit_lamb<thread_communicator, l1_sign>;

// Errors are below 4e-7 of max |p|. Inputs are settled, so signs equal the oracle's; the rest is rounding.
constexpr double tolerance = 2e-6;
constexpr double wrong = 1e-4;

/// Trains on all edge sizes with both scales.
template <class Optimizer>
void check_edges(int world) {
  const auto seed = static_cast<std::uint64_t>(world);
  const experiment e = make_structured_experiment(test_support::edge_model(), seed, world, 5);
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    CAPTURE(world);
    CAPTURE(static_cast<int>(scales));
    CHECK(error_of_one_bit<Optimizer>(e, {.warm_up = {2}, .compressor = {.scales = scales}}) <= tolerance);
  }
}

/// Settings that differ from the defaults in one or more switches.
template <class Optimizer>
std::vector<std::pair<std::string, typename Optimizer::options_type>> variants() {
  using options = typename Optimizer::options_type;
  constexpr auto per_tensor = scale_sharing::per_tensor;
  std::vector<std::pair<std::string, options>> all{
      {"decay rates", {.beta1 = 0.7, .beta2 = 0.9, .warm_up = {3}}},
      {"no momentum", {.beta1 = 0.0, .warm_up = {2}}},
      {"large epsilon", {.epsilon = 0.1, .warm_up = {2}}},
      {"no weight decay", {.weight_decay = 0.0, .warm_up = {2}}},
      {"weight decay", {.weight_decay = 0.3, .warm_up = {2}, .compressor = {.scales = per_tensor}}},
      {"one step of warm-up", {.warm_up = {1}}},
      {"nothing but warm-up", {.warm_up = {100}}},
      {"warm-up to the last step but one", {.warm_up = {5}}},
      {"compressed alone", {.compress_single_rank = true, .warm_up = {2}}},
      {"compressed alone by tensor",
       {.compress_single_rank = true, .warm_up = {2}, .compressor = {.scales = per_tensor}}},
  };
  if constexpr (requires(options o) { o.trust_ratio.factor_change; }) {
    all.push_back({"clamped above", {.warm_up = {3}, .trust_ratio = {.upper = 0.02}}});
    all.push_back({"clamped below", {.warm_up = {3}, .trust_ratio = {.lower = 0.5}}});
    all.push_back({"short average", {.warm_up = {3}, .trust_ratio = {.average = 0.3}}});
    all.push_back({"free factor", {.warm_up = {2}, .trust_ratio = {.factor_lower = 1e-3, .factor_change = 100.0}}});
    all.push_back({"factor clamped above", {.warm_up = {2}, .trust_ratio = {.factor_upper = 0.9}}});
    all.push_back({"factor clamped below", {.warm_up = {2}, .trust_ratio = {.factor_lower = 1.05}}});
    all.push_back({"slow factor", {.warm_up = {2}, .trust_ratio = {.factor_change = 0.001}}});
    all.push_back(
        {"factor with a short memory", {.beta2 = 0.6, .warm_up = {2}, .trust_ratio = {.factor_change = 0.5}}});
  }
  return all;
}

template <class Optimizer>
void check_variants() {
  for (const int world : {1, 3, 4}) {
    const auto seed = static_cast<std::uint64_t>(20 + world);
    model tensors = test_support::mixed_model(seed);
    tensors.erase(tensors.begin() + 6);  // fewer elements
    const experiment e = make_structured_experiment(tensors, seed, world, 6);
    for (const auto& variant : variants<Optimizer>()) {
      CAPTURE(world);
      CAPTURE(variant.first);
      CHECK(error_of_one_bit<Optimizer>(e, variant.second) <= tolerance);
    }
  }
}

template <class Optimizer>
void check_comparison() {
  const model tensors{{300}, {129}, {40}};
  experiment e = make_structured_experiment(tensors, 31, 3, 8);
  const typename Optimizer::options_type given{.weight_decay = 0.1, .warm_up = {3}};
  test_support::settle(e, oracle_at_start(e, given));
  const trajectory reached = test_support::train<Optimizer>(e, given);
  const auto error_with = [&](auto change) {
    auto other = given;
    experiment changed = e;
    change(other, changed.tensors);
    return test_support::worst_one_bit_error(changed, reached, oracle_at_start(changed, other));
  };
  CHECK(error_with([](auto&, auto&) {}) <= tolerance);
  CHECK(error_with([](auto& o, auto&) { o.beta1 = 0.89; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.beta2 = 0.99; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.epsilon = 1e-2; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.weight_decay = 0.0; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.warm_up.steps = 4; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.compressor.scales = scale_sharing::per_tensor; }) > wrong);
  CHECK(error_with([](auto&, auto& l) { l[1].options.compress = false; }) > wrong);
  CHECK(error_with([](auto&, auto& l) { l[1].options.learning_rate_factor = 1.1; }) > wrong);
  if constexpr (requires { given.trust_ratio.factor_change; }) {
    CHECK(error_with([](auto& o, auto&) { o.trust_ratio.average = 0.8; }) > wrong);
    CHECK(error_with([](auto& o, auto&) { o.trust_ratio.factor_change = 0.01; }) > wrong);
    CHECK(error_with([](auto&, auto& l) { l[0].options.adapt = false; }) > wrong);
  }
}

/// Checks that all ranks have the same bits after every step, and that every step changes them.
void check_equal_ranks(const trajectory& reached) {
  for (std::size_t t = 0; t < reached.size(); ++t) {
    CAPTURE(t);
    CHECK(test_support::ranks_agree(reached, t));
    if (t > 0) CHECK_FALSE(test_support::same_bits(reached[t][0], reached[t - 1][0]));
  }
}

}  // namespace

TEST_CASE("one_bit_adam: follows the oracle for tensors of all sizes, every number of ranks and both scales") {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8}) check_edges<adam>(world);
  for (const int world : {2, 5}) check_edges<l1_adam>(world);
}

TEST_CASE("one_bit_lamb: follows the oracle for tensors of all sizes, every number of ranks and both scales") {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8}) check_edges<lamb>(world);
  for (const int world : {2, 5}) check_edges<l1_lamb>(world);
}

TEST_CASE("one_bit_adam: follows the oracle for all switches, with groups and dense tensors") {
  check_variants<adam>();
}

TEST_CASE("one_bit_lamb: follows the oracle for all switches, with groups and dense tensors") {
  check_variants<lamb>();
}

TEST_CASE("one_bit: the comparison with the oracle can fail") {
  check_comparison<adam>();
  check_comparison<lamb>();
}

TEST_CASE("one_bit: follows the oracle with the errors of one side, or none") {
  const experiment e = make_structured_experiment({{300}, {8193}, {40}}, 32, 3, 6);
  const auto check = [&e]<class ErrorFeedback>(ErrorFeedback /*type*/) {
    using as_adam = slamb::one_bit_adam<ErrorFeedback, thread_communicator>;
    using as_lamb = slamb::one_bit_lamb<ErrorFeedback, thread_communicator>;
    CHECK(error_of_one_bit<as_adam>(e, {.warm_up = {2}}) <= tolerance);
    CHECK(error_of_one_bit<as_lamb>(e, {.warm_up = {2}}) <= tolerance);
  };
  check(slamb::residual<>{});
  check(slamb::no_error_feedback{});
}

TEST_CASE("one_bit: follows the oracle with no compressed tensor, and with one") {
  for (const int compressed : {0, 1}) {
    model tensors{{300}, {129}, {0}, {1}};
    for (auto& l : tensors) l.options.compress = false;
    if (compressed == 1) tensors[3].options.compress = true;
    const experiment e = make_structured_experiment(tensors, 33, 3, 6);
    CAPTURE(compressed);
    CHECK(error_of_one_bit<adam>(e, {.warm_up = {2}}) <= tolerance);
    CHECK(error_of_one_bit<lamb>(e, {.warm_up = {2}}) <= tolerance);
  }
}

TEST_CASE("one_bit: an automatic warm-up ends at the reported step, and the oracle continues from there") {
  using automatic = slamb::one_bit_lamb<slamb::automatic_warm_up, thread_communicator>;
  const automatic::options_type options{.beta2 = 0.9, .warm_up = {.threshold = 0.5, .interval = 16}};
  constexpr std::uint64_t steps = 24;
  constexpr std::uint64_t warm_up = 17;  // a sample each step; step 17 is the first with a sample 16 steps before it
  experiment e = make_structured_experiment({{300}, {40}}, 34, 3, steps);
  test_support::settling settled(oracle_at_start(e, options));
  for (std::uint64_t t = 0; t < steps; ++t) {
    if (t == warm_up) settled.run().end_warm_up();
    settled.step(test_support::rates_of(e.tensors, e.rates[t]), e.gradients[t]);
  }
  const trajectory reached = test_support::train<automatic>(e, options);
  CHECK(test_support::max_relative_error(reached.back()[0], settled.run().parameters()) <= tolerance);
  check_equal_ranks(reached);
}

TEST_CASE("one_bit: 1-bit Adam and 1-bit LAMB have the same bits on all ranks after every step") {
  for (const int world : {2, 3, 4, 7, 8}) {
    CAPTURE(world);
    const experiment e = test_support::make_experiment(test_support::mixed_model(35), 35, world, 6);
    for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
      check_equal_ranks(test_support::train<adam>(e, {.warm_up = {2}, .compressor = {.scales = scales}}));
      check_equal_ranks(test_support::train<lamb>(e, {.warm_up = {2}, .compressor = {.scales = scales}}));
    }
  }
}

TEST_CASE("one_bit: any number of threads makes the same bits") {
  const experiment e = test_support::make_experiment(test_support::mixed_model(44), 44, 2, 6);
  const auto check = [&e]<class Optimizer>(Optimizer* /*type*/) {
    for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
      const typename Optimizer::options_type options{.warm_up = {2}, .compressor = {.scales = scales}};
      const trajectory expected = test_support::train<Optimizer>(e, options);
      for (const unsigned threads : {2U, 3U, 5U})
        CHECK(test_support::same_bits(test_support::train<Optimizer>(e, options, {.threads = threads}), expected));
    }
  };
  check(static_cast<adam*>(nullptr));
  check(static_cast<lamb*>(nullptr));
}

TEST_CASE("one_bit_adam: within its warm-up it is Adam without bias correction, bit for bit") {
  using adamw = slamb::adamw<thread_communicator>;
  for (const int world : {1, 2, 5}) {
    CAPTURE(world);
    const experiment e = test_support::make_experiment(test_support::mixed_model(36), 36, world, 5);
    CHECK(test_support::same_bits(test_support::train<adam>(e, {.weight_decay = 0.1, .warm_up = {5}}),
                                  test_support::train<adamw>(e, {.weight_decay = 0.1, .bias_correction = false})));
  }
}

TEST_CASE("one_bit_lamb: within its warm-up it is LAMB with its clamp, without bias correction, bit for bit") {
  using dense = slamb::lamb<thread_communicator>;
  const experiment e = test_support::make_experiment(test_support::mixed_model(37), 37, 3, 5);
  CHECK(test_support::same_bits(
      test_support::train<lamb>(e, {.warm_up = {5}}),
      test_support::train<dense>(e, {.epsilon = 1e-8, .bias_correction = false, .trust_ratio = {0.01, 10.0}})));
}

TEST_CASE("one_bit: two equal ranks have the bits of a single rank with compress_single_rank") {
  // All elements are in the chunk of rank 0: ⌈121/256⌉·128 elements.
  const experiment one = test_support::make_experiment({{100}, {20}, {1}}, 42, 1, 8);
  experiment two = one;
  two.world = 2;
  for (auto& ranks : two.gradients) ranks.push_back(ranks[0]);
  const auto check = [&]<class Optimizer>(Optimizer* /*type*/) {
    for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
      const typename Optimizer::options_type options{
          .compress_single_rank = true, .warm_up = {2}, .compressor = {.scales = scales}};
      const trajectory expected = test_support::train<Optimizer>(one, options);
      const trajectory reached = test_support::train<Optimizer>(two, options);
      for (std::size_t t = 0; t < expected.size(); ++t) {
        CAPTURE(t);
        CHECK(test_support::same_bits(reached[t][0], expected[t][0]));
        CHECK(test_support::same_bits(reached[t][1], expected[t][0]));
      }
    }
  };
  check(static_cast<adam*>(nullptr));
  check(static_cast<lamb*>(nullptr));
}

TEST_CASE("one_bit: on a single rank, 1-bit LAMB's factor uses the true variance") {
  // λ = 0 and a free factor: p moves by γ c̄ max_j(D/D_f) m/D.
  experiment e = make_structured_experiment({{100}}, 43, 1, 12);
  const lamb::options_type options{.beta2 = 0.9,
                                   .weight_decay = 0.0,
                                   .update_bound = std::numeric_limits<double>::infinity(),
                                   .warm_up = {3},
                                   .trust_ratio = {.factor_lower = 1e-6, .factor_upper = 1e6, .factor_change = 1e6}};
  const trajectory reached = test_support::train<lamb>(e, options);
  std::vector<double> m(100, 0.0), v = m, frozen = m;
  double average = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const std::vector<float>& before = t == 0 ? e.start : reached[t - 1][0];
    double of_p = 0.0;
    double of_u = 0.0;
    double factor = 0.0;
    for (std::size_t j = 0; j < 100; ++j) {
      const double g = e.gradients[t][0][j];
      m[j] = 0.9 * m[j] + 0.1 * g;
      v[j] = 0.9 * v[j] + 0.1 * g * g;
      if (t < 3) frozen[j] = v[j];
      factor = std::max(factor, (std::sqrt(frozen[j]) + 1e-8) / (std::sqrt(v[j]) + 1e-8));
      const double u = m[j] / (std::sqrt(frozen[j]) + 1e-8);
      of_p += double{before[j]} * before[j];
      of_u += u * u;
    }
    const double c = std::clamp(std::sqrt(of_p / of_u), 0.01, 10.0);
    if (t < 3) average = 0.9 * average + 0.1 * c;
    double worst = 0.0;
    for (std::size_t j = 0; j < 100; ++j) {
      const double u = m[j] / (std::sqrt(frozen[j]) + 1e-8);
      const double expected = before[j] - e.rates[t][0] * (t < 3 ? c : average * factor) * u;
      worst = std::max(worst, std::abs(reached[t][0][j] - expected));
    }
    CAPTURE(t);
    CHECK(worst <= 1e-6 * test_support::max_magnitude(std::span<const float>(before)));
    if (t > 6) CHECK(std::abs(factor - 1.0) > 0.01);
  }
}

TEST_CASE("one_bit: a step counts with no tensors, or only empty ones") {
  for (const model& tensors : {model{}, model{{0}, {0, 1}}}) {
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      replica mine(tensors, {});
      lamb optimizer(mine.parameters(), {.warm_up = {1}}, std::move(communicator), test_support::one_thread());
      for (int step = 0; step < 3; ++step) optimizer.step(0.1);
      CHECK(optimizer.statistics(true).step == 3);
      CHECK(optimizer.statistics(true).norm.parameters == 0.0);
    });
  }
}

TEST_CASE("one_bit: the defaults are the papers'") {
  const slamb::one_bit_lamb<>::options_type options;
  CHECK(options.beta1 == 0.9);
  CHECK(options.beta2 == 0.999);
  CHECK(options.epsilon == 1e-8);
  CHECK(options.weight_decay == 0.01);
  CHECK_FALSE(options.compress_single_rank);
  CHECK(options.warm_up.steps == 1000);
  CHECK(options.compressor.scales == scale_sharing::fused);
  CHECK_FALSE(options.compressor.zero_aware);
  CHECK(options.trust_ratio.lower == 0.01);
  CHECK(options.trust_ratio.upper == 10.0);
  CHECK(options.trust_ratio.average == 0.9);
  CHECK(options.trust_ratio.factor_lower == 0.5);
  CHECK(options.trust_ratio.factor_upper == 4.0);
  CHECK(options.trust_ratio.factor_change == 0.1);
  CHECK(slamb::one_bit_adam<>::options_type{}.warm_up.steps == 1000);
}

// --------------------------------------------------------------------------------------------------------------- guards

TEST_CASE("one_bit_lamb: a tensor of zeros at the end of the warm-up stays finite and follows the oracle") {
  experiment e = make_structured_experiment({{300}, {40}, {17}, {20}}, 38, 3, 7);
  e.tensors[1].options.weight_decay = 0.0;
  std::fill_n(e.start.begin() + 300, 40 + 17, 0.0F);
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (auto& of_rank : e.gradients[t]) {
      std::fill_n(of_rank.begin() + 300, 40, 0.0F);             // p = g = 0: stays so, because its c̄ is 0
      if (t < 3) std::fill_n(of_rank.begin() + 340, 17, 0.0F);  // p = 0, g = 0 until the switch
      if (t < 3) std::fill_n(of_rank.begin() + 357, 20, 0.0F);  // g = 0 until the switch
    }
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    CHECK(error_of_one_bit<lamb>(e, {.epsilon = 1e-2, .warm_up = {3}, .compressor = {.scales = scales}}) <= tolerance);
    const trajectory reached = test_support::train<lamb>(e, {.warm_up = {3}, .compressor = {.scales = scales}});
    for (const float x : reached.back()[0]) REQUIRE(std::isfinite(x));
  }
}

TEST_CASE("one_bit_lamb: a ratio that is clamped to 1 is not averaged") {
  experiment e = make_structured_experiment({{300}, {40}, {17}}, 39, 2, 7);
  std::fill_n(e.start.begin(), 300, 50.0F);       // always clamped: c̄ stays 0, and the tensor stays as it is
  std::fill_n(e.start.begin() + 300, 40, 3.15F);  // clamped at first
  const lamb::options_type options{.warm_up = {4}, .trust_ratio = {.lower = 0.02, .upper = 1.0}};
  CHECK(error_of_one_bit<lamb>(e, options) <= tolerance);
  auto run = oracle_at_start(e, options);
  for (std::size_t t = 0; t < 4; ++t)
    run.step(test_support::rates_of(e.tensors, e.rates[t]), test_support::widened(e.gradients[t]));
  CHECK(run.usual_ratios()[0] == 0.0);
  CHECK(run.usual_ratios()[1] > 0.0);
  CHECK(run.usual_ratios()[1] < 0.3);  // the average of fewer than four ratios near 1
}

TEST_CASE("one_bit: inactive elements do not move, for any received mean") {
  // Rows 1, 4 and 5 of 6 never have a gradient.
  constexpr std::array<std::uint8_t, 6> rows{1, 0, 1, 1, 0, 0};
  model tensors{{6 * 50}, {200}};
  tensors[0].options.weight_decay = 0.0;
  experiment e = make_structured_experiment(tensors, 40, 3, 8);
  std::vector<std::uint8_t> left_out(500, 0);
  for (std::size_t j = 0; j < 300; ++j) left_out[j] = rows[j / 50] == 0 ? 1 : 0;
  for (auto& ranks : e.gradients)
    for (auto& of_rank : ranks)
      for (std::size_t j = 0; j < 500; ++j)
        if (left_out[j] != 0) of_rank[j] = 0.0F;
  const auto check = [&]<class Optimizer>(Optimizer* /*type*/, bool by_rows) {
    experiment with_rows = e;
    if (by_rows) with_rows.tensors[0].options.rows = rows;
    for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
      const typename Optimizer::options_type options{.warm_up = {2},
                                                     .compressor = {.scales = scales, .zero_aware = !by_rows}};
      CHECK(error_of_one_bit<Optimizer>(with_rows, options, left_out) <= tolerance);
      const trajectory reached = test_support::train<Optimizer>(with_rows, options);
      for (std::size_t j = 0; j < 500; ++j)
        if (left_out[j] != 0) REQUIRE(reached.back()[0][j] == e.start[j]);
    }
  };
  for (const bool by_rows : {false, true}) {
    CAPTURE(by_rows);
    check(static_cast<adam*>(nullptr), by_rows);
    check(static_cast<lamb*>(nullptr), by_rows);
  }
}

TEST_CASE("one_bit: rows without a gradient do not move in 10,000 steps, and errors do not grow") {
  model tensors{{200}, {40}};
  tensors[0].options.weight_decay = 0.0;
  constexpr std::uint64_t steps = 10'000;
  experiment e = make_structured_experiment(tensors, 41, 2, 16);  // gradients that repeat
  for (auto& ranks : e.gradients)
    for (auto& of_rank : ranks) std::fill_n(of_rank.begin() + 50, 100, 0.0F);
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    using watching = test_support::scale_watching_communicator<thread_communicator>;
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto scales = std::make_shared<std::vector<float>>();
    replica mine(e.tensors, e.start);
    slamb::one_bit_adam<watching> run(mine.parameters(), {.warm_up = {20}, .compressor = {.zero_aware = true}},
                                      watching(std::move(communicator), scales), test_support::one_thread());
    scales->clear();  // without the scales of the construction
    for (std::uint64_t t = 0; t < steps; ++t) {
      mine.set_gradient(e.gradients[t % e.steps()][rank]);
      run.step(1e-4);
    }
    const std::vector<float> last = mine.values();
    for (std::size_t j = 0; j < last.size(); ++j) {
      REQUIRE(std::isfinite(last[j]));
      if (j >= 50 && j < 150) REQUIRE(last[j] == e.start[j]);
    }
    // The scale is the norm of signal plus error: compares the second thousand of exchanges with the last.
    REQUIRE(scales->size() == 2 * (steps - 20));
    const auto usual = std::max_element(scales->begin() + 2000, scales->begin() + 4000);
    const auto finally = std::max_element(scales->end() - 2000, scales->end());
    CHECK(*usual > 0.0F);
    CHECK(*finally <= 1.5F * *usual);
  });
}

}  // namespace optimizer_one_bit_tests
