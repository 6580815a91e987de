// 0/1 Adam compared with the oracle: worlds, scales, tensors of all sizes and options, schedules, and properties that hold for
// all values.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/one_bit_cluster.hpp"
#include "support/watching_communicators.hpp"

namespace optimizer_zero_one_adam_tests {
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

using optimizer = slamb::zero_one_adam<thread_communicator>;
using l1_optimizer = slamb::zero_one_adam<thread_communicator, l1_sign>;
using options_type = optimizer::options_type;

// Errors are below 4e-7 of max |p|. Inputs are settled, so signs equal the oracle's; the rest is rounding.
constexpr double tolerance = 2e-6;
constexpr double wrong = 1e-4;

// Refreshes at steps 1, 3 and 7: V doubles each time. The second phase begins at step 7, with exchanges at steps 7 and 8, then
// every second step and, from step 13, every fourth.
constexpr slamb::exponential_variance_interval short_variance{.freeze_step = 6, .update_scaler = 1};
constexpr slamb::doubling_local_interval short_local{.scaler = 3, .clipper = 4};

/// All ranks get the gradients of rank 0.
experiment with_equal_ranks(experiment e, int world) {
  e.world = world;
  for (auto& ranks : e.gradients) ranks.assign(static_cast<std::size_t>(world), std::vector<float>(ranks[0]));
  return e;
}

template <class Optimizer>
void check_edges(int world) {
  const auto seed = static_cast<std::uint64_t>(60 + world);
  const experiment e = make_structured_experiment(test_support::edge_model(), seed, world, 14);
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    CAPTURE(world);
    CAPTURE(static_cast<int>(scales));
    CHECK(error_of_one_bit<Optimizer>(e, {.variance_schedule = short_variance,
                                          .local_schedule = short_local,
                                          .compressor = {.scales = scales}}) <= tolerance);
  }
}

std::vector<std::pair<std::string, options_type>> variants() {
  std::vector<std::pair<std::string, options_type>> all{
      {"decay rates", {.beta1 = 0.7, .beta2 = 0.9}},
      {"no momentum", {.beta1 = 0.0}},
      {"large epsilon", {.epsilon = 0.1}},
      {"no weight decay", {.weight_decay = 0.0}},
      {"weight decay", {.weight_decay = 0.3, .compressor = {.scales = scale_sharing::per_tensor}}},
      {"compressed alone", {.compress_single_rank = true}},
      {"compressed alone by tensor",
       {.compress_single_rank = true, .compressor = {.scales = scale_sharing::per_tensor}}},
  };
  for (auto& variant : all) {
    variant.second.variance_schedule = short_variance;
    variant.second.local_schedule = short_local;
  }
  all.push_back({"defaults", {}});
  all.push_back({"frozen at once", {.variance_schedule = {.freeze_step = 0}, .local_schedule = short_local}});
  all.push_back({"exchanged at each step", {.variance_schedule = {.freeze_step = 4, .update_scaler = 1}}});
  all.push_back({"never frozen", {.variance_schedule = {.freeze_step = 100, .update_scaler = 2}}});
  all.push_back({"longer intervals",
                 {.variance_schedule = {.freeze_step = 4, .update_scaler = 2},
                  .local_schedule = {.scaler = 1, .clipper = 5}}});  // 1, 2, 4, 5
  return all;
}

}  // namespace

TEST_CASE("zero_one_adam: follows the oracle for tensors of all sizes, every number of ranks and both scales") {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8}) check_edges<optimizer>(world);
  for (const int world : {2, 5}) check_edges<l1_optimizer>(world);
}

TEST_CASE("zero_one_adam: follows the oracle for all switches, with groups and dense tensors") {
  for (const int world : {1, 3, 4}) {
    const auto seed = static_cast<std::uint64_t>(70 + world);
    model tensors = test_support::mixed_model(seed);
    tensors.erase(tensors.begin() + 6);  // fewer elements
    const experiment e = make_structured_experiment(tensors, seed, world, 14);
    for (const auto& variant : variants()) {
      CAPTURE(world);
      CAPTURE(variant.first);
      CHECK(error_of_one_bit<optimizer>(e, variant.second) <= tolerance);
    }
  }
}

TEST_CASE("zero_one_adam: the comparison with the oracle can fail") {
  const model tensors{{300}, {129}, {40}};
  experiment e = make_structured_experiment(tensors, 75, 3, 14);
  const options_type given{.weight_decay = 0.1, .variance_schedule = short_variance, .local_schedule = short_local};
  test_support::settle(e, oracle_at_start(e, given));
  const trajectory reached = test_support::train<optimizer>(e, given);
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
  CHECK(error_with([](auto& o, auto&) { o.variance_schedule.freeze_step = 7; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.variance_schedule.update_scaler = 2; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.local_schedule.scaler = 4; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.local_schedule.clipper = 2; }) > wrong);
  CHECK(error_with([](auto& o, auto&) { o.compressor.scales = scale_sharing::per_tensor; }) > wrong);
  CHECK(error_with([](auto&, auto& l) { l[1].options.compress = false; }) > wrong);
  CHECK(error_with([](auto&, auto& l) { l[1].options.learning_rate_factor = 1.1; }) > wrong);
}

TEST_CASE("zero_one_adam: follows the oracle with the errors of one side, or none") {
  const experiment e = make_structured_experiment({{300}, {8193}, {40}}, 76, 3, 14);
  const auto check = [&e]<class ErrorFeedback>(ErrorFeedback /*type*/) {
    using variant = slamb::zero_one_adam<ErrorFeedback, thread_communicator>;
    CHECK(error_of_one_bit<variant>(e, {.variance_schedule = short_variance, .local_schedule = short_local}) <=
          tolerance);
  };
  check(slamb::residual<>{});
  check(slamb::no_error_feedback{});
}

TEST_CASE("zero_one_adam: 0/1 Adam has the same bits on all ranks in its first phase and after every exchange") {
  for (const int world : {2, 3, 4, 7, 8}) {
    CAPTURE(world);
    const experiment e = test_support::make_experiment(test_support::mixed_model(77), 77, world, 24);
    for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
      const options_type options{
          .variance_schedule = short_variance, .local_schedule = short_local, .compressor = {.scales = scales}};
      auto run = oracle_at_start(e, options);
      const trajectory reached = test_support::train<optimizer>(e, options);
      std::size_t local = 0;
      for (std::size_t t = 0; t < e.steps(); ++t) {
        run.step(test_support::rates_of(e.tensors, e.rates[t]), test_support::widened(e.gradients[t]));
        CAPTURE(t);
        const bool is_local = run.last() == oracle::zero_one_adam::kind::local;
        CHECK(test_support::ranks_agree(reached, t) == !is_local);
        if (is_local) ++local;
      }
      CHECK(local >= 10);
    }
  }
}

TEST_CASE("zero_one_adam: any number of threads makes the same bits") {
  const experiment e = test_support::make_experiment(test_support::mixed_model(86), 86, 2, 14);
  const options_type options{.variance_schedule = short_variance, .local_schedule = short_local};
  const trajectory expected = test_support::train<optimizer>(e, options);
  for (const unsigned threads : {2U, 3U, 5U})
    CHECK(test_support::same_bits(test_support::train<optimizer>(e, options, {.threads = threads}), expected));
}

TEST_CASE("zero_one_adam: 0/1 Adam that refreshes at every step and never freezes is Adam without bias correction") {
  using adamw = slamb::adamw<thread_communicator>;
  for (const int world : {1, 2, 5}) {
    CAPTURE(world);
    const experiment e = test_support::make_experiment(test_support::mixed_model(78), 78, world, 20);
    CHECK(test_support::same_bits(
        test_support::train<optimizer>(e, {.variance_schedule = {.freeze_step = 1000, .update_scaler = 1000}}),
        test_support::train<adamw>(e, {.bias_correction = false})));
  }
}

TEST_CASE("zero_one_adam: a single rank does not depend on the schedule of exchanges") {
  const experiment e = test_support::make_experiment(test_support::mixed_model(79), 79, 1, 30);
  const auto train_with = [&e](slamb::doubling_local_interval local) {
    return test_support::train<optimizer>(e, {.variance_schedule = short_variance, .local_schedule = local});
  };
  const trajectory expected = train_with({});
  CHECK(test_support::same_bits(train_with({.scaler = 1, .clipper = 16}), expected));
  CHECK(test_support::same_bits(train_with({.scaler = 5, .clipper = 3}), expected));
}

TEST_CASE("zero_one_adam: an interval with the learning rate 0 keeps the momentum, and everything finite") {
  experiment e = make_structured_experiment({{300}, {40}}, 90, 3, 18);
  e.tensors[1].options.group = 1;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    e.rates[t] = {e.rates[t][0], e.rates[t][0]};
    if (t == 6) e.rates[t] = {0.0, 0.0};              // the first exchange, with L = 1: no error yet, nothing moves
    if (t >= 9 && t <= 11) e.rates[t] = {0.01, 0.0};  // only one group
  }
  const options_type options{.weight_decay = 0.0,
                             .variance_schedule = {.freeze_step = 6, .update_scaler = 1},
                             .local_schedule = {.scaler = 3, .clipper = 2},
                             .compressor = {.scales = scale_sharing::per_tensor}};
  CHECK(error_of_one_bit<optimizer>(e, options) <= tolerance);
  const trajectory reached = test_support::train<optimizer>(e, options);
  CHECK(test_support::same_bits(reached[6][0], reached[5][0]));
  for (const float x : reached.back()[0]) REQUIRE(std::isfinite(x));

  // All rates 0 from the start: nothing ever moves.
  for (auto& rates : e.rates) rates = {0.0, 0.0};
  CHECK(test_support::same_bits(test_support::train<optimizer>(e, options).back()[2], e.start));
}

TEST_CASE("zero_one_adam: inactive elements do not move, for any received mean") {
  // Rows 1, 4 and 5 of 6 never have a gradient.
  constexpr std::array<std::uint8_t, 6> rows{1, 0, 1, 1, 0, 0};
  model tensors{{6 * 50}, {200}};
  tensors[0].options.weight_decay = 0.0;
  experiment e = make_structured_experiment(tensors, 81, 3, 14);
  std::vector<std::uint8_t> left_out(500, 0);
  for (std::size_t j = 0; j < 300; ++j) left_out[j] = rows[j / 50] == 0 ? 1 : 0;
  for (auto& ranks : e.gradients)
    for (auto& of_rank : ranks)
      for (std::size_t j = 0; j < 500; ++j)
        if (left_out[j] != 0) of_rank[j] = 0.0F;
  for (const bool by_rows : {false, true}) {
    CAPTURE(by_rows);
    experiment with_rows = e;
    if (by_rows) with_rows.tensors[0].options.rows = rows;
    for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
      const options_type options{.variance_schedule = short_variance,
                                 .local_schedule = short_local,
                                 .compressor = {.scales = scales, .zero_aware = !by_rows}};
      CHECK(error_of_one_bit<optimizer>(with_rows, options, left_out) <= tolerance);
      const trajectory reached = test_support::train<optimizer>(with_rows, options);
      for (std::size_t j = 0; j < 500; ++j)
        if (left_out[j] != 0) REQUIRE(reached.back()[0][j] == e.start[j]);
    }
  }
}

TEST_CASE("zero_one_adam: a zero-aware quantizer includes an element from its first refresh on") {
  // The second half has its first gradient at step 2, in one bit, and is refreshed at step 3.
  experiment e = make_structured_experiment({{100}}, 82, 2, 14);
  for (auto& of_rank : e.gradients[0]) std::fill_n(of_rank.begin() + 50, 50, 0.0F);
  const options_type options{
      .variance_schedule = short_variance, .local_schedule = short_local, .compressor = {.zero_aware = true}};
  CHECK(error_of_one_bit<optimizer>(e, options) <= tolerance);
}

TEST_CASE("zero_one_adam: rows without a gradient do not move in 10,000 steps, and errors do not grow") {
  model tensors{{200}, {40}};
  tensors[0].options.weight_decay = 0.0;
  constexpr std::uint64_t steps = 10'000;
  experiment e = make_structured_experiment(tensors, 83, 2, 16);  // gradients that repeat
  for (auto& ranks : e.gradients)
    for (auto& of_rank : ranks) std::fill_n(of_rank.begin() + 50, 100, 0.0F);
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    using watching = test_support::scale_watching_communicator<thread_communicator>;
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto scales = std::make_shared<std::vector<float>>();
    replica mine(e.tensors, e.start);
    slamb::zero_one_adam<watching> run(mine.parameters(),
                                       {.variance_schedule = {.freeze_step = 1000, .update_scaler = 16},
                                        .local_schedule = {.scaler = 2000, .clipper = 4},
                                        .compressor = {.zero_aware = true}},
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
    // The scale is the norm of signal plus error, with L = 4: compares early with late.
    REQUIRE(scales->size() > 4000);
    const auto usual = std::max_element(scales->end() - 2000, scales->end() - 1500);
    const auto finally = std::max_element(scales->end() - 500, scales->end());
    CHECK(*usual > 0.0F);
    CHECK(*finally <= 1.5F * *usual);
  });
}

TEST_CASE("zero_one_adam: synchronize_parameters makes parameters equal, and does not change the training") {
  const experiment e = test_support::make_experiment({{9000}, {100}, {33, 1}}, 84, 3, 16);
  const options_type options{.variance_schedule = short_variance, .local_schedule = short_local};
  const trajectory expected = test_support::train<optimizer>(e, options);
  trajectory reached(e.steps(), std::vector<std::vector<float>>(3));
  trajectory equal = reached;
  slamb::run_ranks(3, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    optimizer run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(e.rates[t]);
      reached[t][rank] = mine.values();
      run.synchronize_parameters();
      equal[t][rank] = mine.values();
    }
  });
  CHECK(test_support::same_bits(reached, expected));
  for (std::size_t t = 0; t < e.steps(); ++t) {
    CAPTURE(t);
    CHECK(test_support::ranks_agree(equal, t));
    if (test_support::ranks_agree(reached, t)) CHECK(test_support::same_bits(equal[t][0], reached[t][0]));
    double worst = 0.0;
    for (std::size_t j = 0; j < e.start.size(); ++j) {
      const double mean = (double{reached[t][0][j]} + reached[t][1][j] + reached[t][2][j]) / 3.0;
      worst = std::max(worst, std::abs(equal[t][0][j] - mean));
    }
    CHECK(worst <= 3e-7 * test_support::max_magnitude(std::span<const float>(equal[t][0])));
  }
}

TEST_CASE("zero_one_adam: two equal ranks have the bits of a single rank with compress_single_rank") {
  // All elements are in the chunk of rank 0: ⌈121/256⌉·128 elements.
  const experiment one = test_support::make_experiment({{100}, {20}, {1}}, 85, 1, 16);
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    const options_type options{.compress_single_rank = true,
                               .variance_schedule = short_variance,
                               .local_schedule = short_local,
                               .compressor = {.scales = scales}};
    const trajectory expected = test_support::train<optimizer>(one, options);
    const trajectory reached = test_support::train<optimizer>(with_equal_ranks(one, 2), options);
    for (std::size_t t = 0; t < expected.size(); ++t) {
      CAPTURE(t);
      CHECK(test_support::ranks_agree(reached, t));
      CHECK(test_support::same_bits(reached[t][0], expected[t][0]));
    }
  }
}

TEST_CASE("zero_one_adam: a step counts with no tensors, or only empty ones") {
  for (const model& tensors : {model{}, model{{0}, {0, 1}}}) {
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      replica mine(tensors, {});
      optimizer run(mine.parameters(), {.variance_schedule = short_variance, .local_schedule = short_local},
                    std::move(communicator), test_support::one_thread());
      for (int step = 0; step < 12; ++step) run.step(0.1);
      run.synchronize_parameters();
      CHECK(run.statistics(true).step == 12);
      CHECK(run.statistics(true).norm.parameters == 0.0);
    });
  }
}

TEST_CASE("zero_one_adam: the defaults are the published ones") {
  const slamb::zero_one_adam<>::options_type options;
  CHECK(options.beta1 == 0.9);
  CHECK(options.beta2 == 0.999);
  CHECK(options.epsilon == 1e-8);
  CHECK(options.weight_decay == 0.01);
  CHECK_FALSE(options.compress_single_rank);
  CHECK(options.variance_schedule.update_scaler == 16);
  CHECK(options.local_schedule.scaler == 32678);
  CHECK(options.local_schedule.clipper == 16);
  CHECK(options.compressor.scales == scale_sharing::fused);
}

TEST_CASE("zero_one_adam: the published schedule has 153 full exchanges and 70,467 of one bit") {
  using peers = test_support::imagined_peers;
  replica mine({{1}}, std::vector<float>{1.0F});
  mine.set_gradient(std::vector<float>{1.0F});
  slamb::zero_one_adam<peers> run(mine.parameters(), {}, peers(2, peers::habit::send_the_same),
                                  test_support::one_thread());
  const std::uint64_t before = run.statistics().traffic[slamb::collective::all_reduce].rounds;
  for (int step = 0; step < 118'000; ++step) run.step(1e-6);
  const slamb::statistics after = run.statistics();
  CHECK(after.traffic[slamb::collective::all_reduce].rounds - before == 153);
  CHECK(after.traffic[slamb::collective::all_to_all].rounds == 70'467);
  CHECK(after.traffic[slamb::collective::all_gather].rounds == 70'467);
}

}  // namespace optimizer_zero_one_adam_tests
