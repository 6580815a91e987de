// SLAMB compared with the oracle: both forms, all compressors and block sizes, all switches, sizes, groups and numbers of ranks.
// The oracle gets the selected elements; ages, averages and everything else it computes itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace optimizer_slamb_tests {
namespace {

using slamb::explicit_mask;
using slamb::no_compressor;
using slamb::rescaling;
using slamb::sampling;
using test_support::error_of_slamb;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;

using round_robin = slamb::random_k<sampling::round_robin>;
using bernoulli = slamb::random_k<sampling::bernoulli>;

template <class Compressor, rescaling Form = rescaling::product>
using optimizer = slamb::slamb<slamb::thread_communicator, Compressor, slamb::rescaled_trust_ratio<Form>>;

constexpr std::array worlds{1, 2, 3, 4, 7, 8};

// The largest error in all cases is 4.3e-7 of max |p|; a wrong switch moves it above `wrong`.
constexpr double tolerance = 2e-6;
constexpr double wrong = 2e-5;

template <class Compressor, rescaling Form>
void check_compressor(const std::string& name, const Compressor& compressor, const experiment& e,
                      std::uint64_t dense_below) {
  CAPTURE(name);
  CAPTURE(e.world);
  CAPTURE(dense_below);
  CHECK(error_of_slamb<optimizer<Compressor, Form>>(
            e, {.local_steps = 3, .dense_below = dense_below, .compressor = compressor}) <= tolerance);
}

template <rescaling Form>
void check_compressors() {
  for (const int world : worlds) {
    const auto seed = static_cast<std::uint64_t>(world) + 20;
    const experiment e = make_experiment(test_support::random_model(seed, 6), seed, world, 7);
    const std::uint64_t dense_below = world % 2 == 0 ? 16 : 9000;
    for (const std::size_t block : {1U, 5U, 16U, 64U}) {
      check_compressor<round_robin, Form>("round robin", {.k = 0.25, .block = block, .seed = seed}, e, dense_below);
      check_compressor<bernoulli, Form>("bernoulli", {.k = 0.3, .block = block, .seed = seed}, e, dense_below);
    }
    check_compressor<explicit_mask, Form>("explicit mask", {}, e, dense_below);
    check_compressor<no_compressor, Form>("no compressor", {}, e, dense_below);
  }
}

template <rescaling Form>
void check_switches() {
  using options = typename optimizer<round_robin, Form>::options_type;
  const round_robin fifth{.k = 0.2, .seed = 3};
  const std::vector<std::pair<std::string, options>> variants{
      {"defaults", {}},
      {"decay rates", {.beta1 = 0.7, .beta2 = 0.95, .beta3 = 0.5, .compressor = fifth}},
      {"always fresh", {.beta3 = 1.0, .dense_below = 1, .compressor = fifth}},
      {"never fresh", {.beta3 = 0.0, .dense_below = 1, .compressor = fifth}},
      {"no momentum", {.beta1 = 0.0, .beta2 = 0.9, .compressor = fifth}},
      {"large epsilon", {.epsilon = 0.1, .compressor = fifth}},
      {"no weight decay", {.weight_decay = 0.0, .compressor = fifth}},
      {"weight decay", {.weight_decay = 0.3, .dense_below = 1, .compressor = fifth}},
      {"no bias correction", {.bias_correction = false, .dense_below = 1, .compressor = fifth}},
      {"averaged at every step", {.local_steps = 1, .dense_below = 1, .compressor = fifth}},
      {"averaged at every other step", {.local_steps = 2, .dense_below = 1, .compressor = fifth}},
      {"nothing dense", {.dense_below = 0, .compressor = fifth}},
      {"all dense", {.dense_below = 9001, .compressor = fifth}},
      {"clamped above", {.dense_below = 1, .compressor = fifth, .trust_ratio = {.lower = 0.01, .upper = 0.05}}},
      {"clamped below", {.dense_below = 1, .compressor = fifth, .trust_ratio = {.lower = 0.5, .upper = 10.0}}},
      {"large blocks", {.dense_below = 1, .compressor = {.k = 0.5, .block = 20'000}}},
      {"thirds", {.dense_below = 1, .compressor = {.k = 1.0 / 3.0, .block = 7}}},
      {"many slots", {.dense_below = 1, .compressor = {.k = 1.0 / 300.0}}},
      {"all slots", {.dense_below = 1, .compressor = {.k = 1.0}}},
  };
  for (const int world : {1, 3, 4}) {
    const auto seed = static_cast<std::uint64_t>(world) + 40;
    const experiment e = make_experiment(test_support::random_model(seed, 6), seed, world, 6);
    for (const auto& variant : variants) {
      CAPTURE(world);
      CAPTURE(variant.first);
      CHECK(error_of_slamb<optimizer<round_robin, Form>>(e, variant.second) <= tolerance);
    }
  }
}

// Selects every third element, and knows no ages: they are stored as this type.
template <class Age>
struct every_third {
  struct selection {
    using age_type = Age;
    std::uint64_t step;
    SLAMB_HOST_DEVICE bool selects(slamb::coordinate c) const { return (c.index + step) % 3 == 0; }
  };
  static selection at(std::uint64_t step) { return {step}; }
};

}  // namespace

TEST_CASE("slamb: follows the oracle with stored ages of any type") {
  const experiment e = make_experiment(test_support::random_model(55, 6), 55, 2, 9);
  for (const std::uint64_t dense_below : {0U, 16U}) {
    check_compressor<every_third<std::uint8_t>, rescaling::product>("8 bits", {}, e, dense_below);
    check_compressor<every_third<std::uint16_t>, rescaling::product>("16 bits", {}, e, dense_below);
    check_compressor<every_third<std::uint32_t>, rescaling::product>("32 bits", {}, e, dense_below);
  }
}

TEST_CASE("slamb: the product form follows the oracle for every compressor and number of ranks") {
  check_compressors<rescaling::product>();
}

TEST_CASE("slamb: the blend form follows the oracle for every compressor and number of ranks") {
  check_compressors<rescaling::blend>();
}

TEST_CASE("slamb: the product form follows the oracle for all switches") { check_switches<rescaling::product>(); }

TEST_CASE("slamb: the blend form follows the oracle for all switches") { check_switches<rescaling::blend>(); }

TEST_CASE("slamb: the comparison with the oracle can fail") {
  using blend = optimizer<explicit_mask, rescaling::blend>;
  using product = optimizer<explicit_mask>;
  const experiment e = make_experiment(test_support::random_model(51, 6), 51, 3, 6);
  const product::options_type given{.weight_decay = 0.1, .local_steps = 3, .dense_below = 16};
  const auto reached = test_support::train<product>(e, given);
  const auto error_with = [&](auto change) {
    product::options_type other = given;
    experiment changed = e;
    change(other, changed);
    return test_support::worst_error(changed, reached, test_support::slamb_oracle(changed, other));
  };
  CHECK(error_with([](auto&, auto&) {}) <= tolerance);
  CHECK(error_with([](auto& o, auto&) { o.beta1 = 0.89; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.beta2 = 0.99; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.beta3 = 0.95; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.weight_decay = 0.0; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.bias_correction = false; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.local_steps = 4; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.dense_below = 9001; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.trust_ratio.upper = 0.02; }) > wrong);
  CHECK(error_with([](auto&, auto& x) { x.tensors[4].options.compress = false; }) > wrong);
  CHECK(error_with([](auto&, auto& x) { x.tensors[4].dimensions = 1; }) > wrong);
  CHECK(error_with([](auto&, auto& x) { x.masks[2] = x.masks[1]; }) > wrong);

  const blend::options_type as_blend{.weight_decay = 0.1, .local_steps = 3, .dense_below = 16};
  CHECK(test_support::worst_error(e, reached, test_support::slamb_oracle(e, as_blend)) > wrong);
}

TEST_CASE("slamb: follows the oracle over a tensor of many tiles") {
  const experiment e = make_experiment({{1'000'003}, {15}, {1'000, 1}}, 52, 2, 2);
  CHECK(error_of_slamb<optimizer<round_robin>>(e, {}) <= tolerance);
  CHECK(error_of_slamb<optimizer<bernoulli>>(e, {.compressor = {.block = 16}}) <= tolerance);
}

TEST_CASE("slamb: follows the oracle if a norm is zero") {
  model tensors{{40}, {40}, {300}, {300}};
  tensors[3].options.weight_decay = 0.0;
  experiment e = make_experiment(tensors, 53, 2, 4);
  std::fill_n(e.start.begin(), 80, 0.0F);  // ‖p‖ = 0
  for (auto& ranks : e.gradients)
    for (auto& gradient : ranks) {
      std::fill_n(gradient.begin(), 40, 0.0F);                  // and so ‖u‖ = 0
      std::fill(gradient.begin() + 380, gradient.end(), 0.0F);  // ‖u‖ = 0, because λ is 0 as well
    }
  CHECK(error_of_slamb<optimizer<explicit_mask>>(e, {.dense_below = 0}) <= tolerance);
  CHECK(error_of_slamb<optimizer<explicit_mask, rescaling::blend>>(e, {.dense_below = 0}) <= tolerance);
}

TEST_CASE("slamb: follows the oracle if nothing or everything is selected") {
  experiment e = make_experiment(test_support::random_model(54, 4), 54, 3, 5);
  std::fill(e.masks[1].begin(), e.masks[1].end(), std::uint8_t{0});
  std::fill(e.masks[2].begin(), e.masks[2].end(), std::uint8_t{0});
  std::fill(e.masks[4].begin(), e.masks[4].end(), std::uint8_t{255});
  for (const std::uint64_t dense_below : {0U, 9000U}) {
    CHECK(error_of_slamb<optimizer<explicit_mask>>(e, {.dense_below = dense_below}) <= tolerance);
    CHECK(error_of_slamb<optimizer<explicit_mask, rescaling::blend>>(e, {.dense_below = dense_below}) <= tolerance);
  }
}

TEST_CASE("slamb: a step counts with no tensors, or only empty ones") {
  for (const model& tensors : {model{}, model{{0}, {0, 1}}}) {
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      replica mine(tensors, {});
      optimizer<round_robin> run(mine.parameters(), {.local_steps = 1}, std::move(communicator),
                                 test_support::one_thread());
      run.step(0.1);
      run.step(0.1);
      run.synchronize_parameters();
      CHECK(run.statistics(true).step == 2);
      CHECK(run.statistics(true).norm.parameters == 0.0);
    });
  }
}

TEST_CASE("slamb: the defaults are the paper's") {
  const slamb::slamb<>::options_type options;
  CHECK(options.beta1 == 0.9);
  CHECK(options.beta2 == 0.999);
  CHECK(options.beta3 == 0.93);
  CHECK(options.epsilon == 1e-6);
  CHECK(options.weight_decay == 0.01);
  CHECK(options.bias_correction);
  CHECK(options.local_steps == 100);
  CHECK(options.dense_below == 9000);
  CHECK(options.compressor.k == 0.1);
  CHECK(options.compressor.block == 1);
  CHECK(options.trust_ratio.lower == 0.01);
  CHECK(options.trust_ratio.upper == 1000.0);
  CHECK(options.compressor.slots() == 10);
}

TEST_CASE("slamb: parameters are averaged at steps 1, 1 + H, 1 + 2H, and on demand") {
  const experiment e = make_experiment({{9000}, {100}, {33, 1}}, 55, 3, 8);
  const auto reached = test_support::train<optimizer<round_robin>>(e, {.local_steps = 3});
  for (std::size_t t = 0; t < e.steps(); ++t) {
    CAPTURE(t);
    CHECK(test_support::ranks_agree(reached, t) == (t % 3 == 0));
  }

  test_support::trajectory last(2, std::vector<std::vector<float>>(3));
  slamb::run_ranks(3, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    optimizer<round_robin> run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < 3; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(0.01);
    }
    last[0][rank] = mine.values();
    run.synchronize_parameters();
    last[1][rank] = mine.values();
  });
  CHECK_FALSE(test_support::ranks_agree(last, 0));
  CHECK(test_support::ranks_agree(last, 1));
  double worst = 0.0;
  for (std::size_t i = 0; i < e.start.size(); ++i) {
    const double mean = (double{last[0][0][i]} + last[0][1][i] + last[0][2][i]) / 3.0;
    worst = std::max(worst, std::abs(last[1][0][i] - mean));
  }
  CHECK(worst <= 2e-7 * test_support::max_magnitude(std::span<const float>(last[1][0])));
}

}  // namespace optimizer_slamb_tests
