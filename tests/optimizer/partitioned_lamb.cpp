// AdamW and LAMB whose state is partitioned over the ranks, compared with the oracle, and with ranks that have the whole state.
#include "slamb/optimizer/partitioned_lamb.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/said.hpp"
#include "support/saved_training.hpp"

namespace optimizer_partitioned_lamb_tests {
namespace {

using slamb::no_compressor;
using slamb::thread_communicator;
using slamb::sync::partition;
using test_support::experiment;
using test_support::made_optimizer;
using test_support::make_experiment;
using test_support::model;
using test_support::optimizer_maker;
using test_support::replica;
using test_support::trajectory;

using whole_adamw = slamb::adamw<thread_communicator>;
using whole_lamb = slamb::lamb<thread_communicator>;
template <class Partition = partition<>, class... Policies>
using adamw = slamb::adamw<Partition, thread_communicator, Policies...>;
template <class Partition = partition<>, class... Policies>
using lamb = slamb::lamb<Partition, thread_communicator, Policies...>;

constexpr std::array worlds{1, 2, 3, 4, 7};
constexpr double tolerance = 4e-6;  // as in lamb.cpp

/// Empty tensors, tensors smaller than the unit of chunks, and chunks without elements.
std::vector<model> odd_models() {
  return {{{1}}, {{3}, {0}, {2, 1}}, {{20'011}, {300, 1}, {0}, {8999}, {9000}}, {{129}, {127}, {640, 1}, {5}}};
}

/// Gradients whose sums over ranks are exact in any order.
experiment exact_experiment(const model& tensors, std::uint64_t seed, int world, std::size_t steps) {
  experiment e = make_experiment(tensors, seed, world, steps);
  for (auto& ranks : e.gradients)
    for (auto& gradient : ranks)
      for (float& x : gradient) x = std::round(x * 0x1p12F) * 0x1p-12F;
  return e;
}

template <class Options>
auto variants_of() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return std::vector<Options>{{},
                              {.beta1 = 0.7, .beta2 = 0.95, .weight_decay = 0.3},
                              {.epsilon = 0.1, .weight_decay = 0.0},
                              {.bias_correction = false},
                              {.epsilon = 1e-3, .max_gradient_norm = 1.0},
                              {.epsilon = 1e-3, .max_gradient_norm = 1e6},
                              {.max_gradient_norm = infinity},
                              {.max_gradient_norm = 2.0, .skip_non_finite = false}};
}

template <class Optimizer>
void check_oracle() {
  for (const int world : worlds) {
    const auto seed = static_cast<std::uint64_t>(world);
    const experiment e = make_experiment(test_support::random_model(seed, 8), seed, world, 4);
    for (const auto& options : variants_of<typename Optimizer::options_type>()) {
      CAPTURE(world);
      CHECK(test_support::error_of_dense<Optimizer>(e, options) <= tolerance);
    }
  }
}

/// True if all ranks have equal parameters after each step.
bool all_agree(const trajectory& reached) {
  for (std::size_t t = 0; t < reached.size(); ++t)
    if (!test_support::ranks_agree(reached, t)) return false;
  return true;
}

double largest_difference(std::span<const float> a, std::span<const double> b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace

TEST_CASE("partitioned adamw: follows the oracle for all switches and numbers of ranks") { check_oracle<adamw<>>(); }

TEST_CASE("partitioned lamb: follows the oracle for all switches and numbers of ranks") { check_oracle<lamb<>>(); }

TEST_CASE("partitioned adamw: has the bits of ranks with the whole state, where sums of gradients are exact") {
  for (const int world : worlds) {
    std::vector<model> models = odd_models();
    models.push_back(test_support::random_model(70, 9));
    for (const model& tensors : models) {
      CAPTURE(world);
      const experiment e = exact_experiment(tensors, 71, world, 4);
      CHECK(test_support::same_bits(test_support::train<adamw<>>(e, {.weight_decay = 0.1}),
                                    test_support::train<whole_adamw>(e, {.weight_decay = 0.1})));
    }
  }
}

TEST_CASE("partitioned lamb: agrees with ranks that have the whole state, to the rounding of sums") {
  for (const int world : worlds)
    for (const model& tensors : odd_models()) {
      CAPTURE(world);
      const experiment e = exact_experiment(tensors, 72, world, 4);
      const trajectory parts = test_support::train<lamb<>>(e, {}), whole = test_support::train<whole_lamb>(e, {});
      CHECK(all_agree(parts));
      for (std::size_t t = 0; t < e.steps(); ++t)
        CHECK(test_support::max_relative_error(parts[t][0], test_support::widened(whole[t][0])) <= 1e-6);
      if (world == 1) CHECK(test_support::same_bits(parts, whole));
    }
}

TEST_CASE("partitioned lamb: a single rank sends nothing, with any quantizers") {
  const experiment e = make_experiment(test_support::random_model(73, 7), 73, 1, 3);
  const auto expected = test_support::train<whole_lamb>(e, {.max_gradient_norm = 1.0});
  const auto check = [&]<class Optimizer>(Optimizer* /*type*/) {
    replica mine(e.tensors, e.start);
    Optimizer optimizer(mine.parameters(), {.max_gradient_norm = 1.0});
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][0]);
      optimizer.step(e.rates[t]);
      CHECK(test_support::same_bits(mine.values(), expected[t][0]));
    }
    CHECK(optimizer.statistics().traffic.total().rounds == 0);
    CHECK(mine.intact());
  };
  check(static_cast<slamb::lamb<partition<>>*>(nullptr));
  check(static_cast<slamb::lamb<slamb::int8, partition<slamb::int8>>*>(nullptr));
}

namespace {

/// All ranks have the same bits after each step, and follow the dense steps within `error` of the largest step.
template <class Optimizer>
void check_codes(const typename Optimizer::options_type& options, double error) {
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    const experiment e = make_experiment(test_support::random_model(74, 9), 74, world, 6);
    const trajectory reached = test_support::train<Optimizer>(e, options);
    CHECK(all_agree(reached));
    const trajectory dense = test_support::train<lamb<>>(e, {.weight_decay = options.weight_decay});
    double moved = 0.0, apart = 0.0;
    for (std::size_t i = 0; i < e.start.size(); ++i) {
      moved = std::max(moved, std::abs(static_cast<double>(dense.back()[0][i] - e.start[i])));
      apart = std::max(apart, std::abs(static_cast<double>(dense.back()[0][i] - reached.back()[0][i])));
    }
    CHECK(apart <= error * moved);
  }
}

}  // namespace

TEST_CASE("partitioned lamb: ranks have equal bits after every step, whatever is sent in codes") {
  check_codes<lamb<partition<>, slamb::bf16>>({}, 0.5);
  check_codes<lamb<partition<slamb::bf16>>>({}, 0.05);
  check_codes<lamb<partition<slamb::int8>>>({}, 0.05);
  check_codes<lamb<partition<slamb::natural>, slamb::int8, slamb::residual<>>>({}, 1.0);
  check_codes<lamb<partition<slamb::int8>, slamb::int8, slamb::two_sided<slamb::bfloat16>>>({}, 1.0);
  check_codes<lamb<partition<slamb::four_levels>, slamb::sign>>({}, 2.0);
  check_codes<lamb<partition<slamb::sign>, slamb::int4, slamb::no_error_feedback>>({}, 2.0);
  check_codes<lamb<partition<slamb::int8>, slamb::sign>>(
      {.compressor = {slamb::scale_sharing::per_tensor}, .parameter_sync = {.quantizer = {.block = 16}}}, 2.0);
}

namespace {

// Gradients do not depend on parameters here, so the exact parameters are AdamW's.
template <class Quantizer>
void check_unsent(double bound) {
  constexpr std::size_t steps = 60;
  for (const int world : {2, 3}) {
    CAPTURE(world);
    experiment e = make_experiment({{700}, {0}, {33, 1}, {5000}}, 75, world, steps);
    test_support::use_one_rate(e, 0.01);
    const typename adamw<partition<Quantizer>>::options_type options{.weight_decay = 0.0};
    const trajectory reached = test_support::train<adamw<partition<Quantizer>>>(e, options);
    CHECK(all_agree(reached));
    oracle::adam_family exact(test_support::oracle_tensors(e.tensors, 0.0), test_support::widened(e.start),
                              test_support::oracle_settings(options));
    double early = 0.0, late = 0.0;
    for (std::size_t t = 0; t < steps; ++t) {
      exact.step(0.01, test_support::widened(e.gradients[t]));
      double& most = t < steps / 2 ? early : late;
      most = std::max(most, largest_difference(reached[t][0], exact.parameters()));
    }
    CHECK(early <= bound * 0.01);  // of an element's step, which is at most about the rate
    CHECK(late <= 1.05 * early);
    CHECK(late > 0.0);
  }
}

}  // namespace

TEST_CASE("partitioned adamw: the exact parameters stay as near as a code, and no farther with time") {
  check_unsent<slamb::bf16>(0.005);
  check_unsent<slamb::int8>(0.02);
  check_unsent<slamb::int4>(0.4);
  check_unsent<slamb::natural>(1.0);
}

namespace {

// With ε and γ of 1e8 and without momentum, an update is the mean gradient.
template <class Options>
Options plain_sum() {
  return {.beta1 = 0.0, .beta2 = 0.0, .epsilon = 1e10, .weight_decay = 0.0, .bias_correction = false};
}

// ‖Σ mean − what the parameters have moved by‖∞, after steps without a gradient that send the compression errors.
template <class Compressor, class... Feedback>
double lost_by(int world) {
  constexpr std::size_t steps = 4, more = 12;
  using optimizer = adamw<partition<>, Compressor, Feedback...>;
  experiment e = make_experiment({{700}, {0}, {33, 1}, {5000}}, 76, world, steps + more);
  test_support::use_one_rate(e, 1e10);
  std::fill(e.start.begin(), e.start.end(), 0.0F);
  oracle::vector sum(e.start.size());
  for (std::size_t t = 0; t < steps + more; ++t) {
    for (auto& gradient : e.gradients[t])
      if (t >= steps) std::fill(gradient.begin(), gradient.end(), 0.0F);
    const auto wide = test_support::widened(e.gradients[t]);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] -= oracle::mean(wide, j);
  }
  const trajectory reached = test_support::train<optimizer>(e, plain_sum<typename optimizer::options_type>());
  return largest_difference(reached.back()[0], sum);
}

}  // namespace

TEST_CASE("partitioned adamw: the compression error of gradients is sent in later steps") {
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    CHECK(lost_by<slamb::bf16>(world) <= 2e-6);
    CHECK(lost_by<slamb::int8>(world) <= 2e-6);
    CHECK(lost_by<slamb::int8, slamb::residual<>>(world) <= 2e-6);
    CHECK(lost_by<slamb::int4>(world) <= 2e-6);
    CHECK(lost_by<slamb::bf16, slamb::no_error_feedback>(world) > 1e-4);  // it is lost
    CHECK(lost_by<no_compressor>(world) <= 2e-6);
  }
}

namespace {

/// Makers of different partitions, each with its name.
struct named_maker {
  std::string name;
  optimizer_maker make;
};
std::vector<named_maker> all_kinds() {
  return {{"lamb, dense", test_support::maker_of<lamb<>>({.max_gradient_norm = 3.0})},
          {"adamw, dense", test_support::maker_of<adamw<>>({})},
          {"lamb, codes of gradients", test_support::maker_of<lamb<partition<>, slamb::int8>>({})},
          {"lamb, codes of parameters", test_support::maker_of<lamb<partition<slamb::int4>>>({})},
          {"adamw, codes both ways",
           test_support::maker_of<adamw<partition<slamb::int8>, slamb::sign>>({.max_gradient_norm = 3.0})}};
}

}  // namespace

TEST_CASE("partitioned lamb: all ranks skip a step with an overflow on one, and nothing changes") {
  for (const named_maker& kind : all_kinds()) {
    CAPTURE(kind.name);
    for (const int world : {2, 3}) {
      const experiment e = make_experiment(test_support::random_model(77, 6), 77, world, 4);
      experiment with_overflow = e;
      // Draws of stochastic rounding depend on the number of steps taken.
      with_overflow.gradients.insert(with_overflow.gradients.begin() + 2, e.gradients[2]);
      with_overflow.rates.insert(with_overflow.rates.begin() + 2, e.rates[2]);
      with_overflow.masks.insert(with_overflow.masks.begin() + 2, e.masks[2]);
      const auto last = static_cast<std::size_t>(world) - 1;
      with_overflow.gradients[2][last].back() = std::numeric_limits<float>::infinity();
      const trajectory expected = test_support::train(e, kind.make);
      const trajectory reached = test_support::train(with_overflow, kind.make);
      for (std::size_t rank = 0; rank <= last; ++rank) {
        CHECK(test_support::same_bits(reached[2][rank], reached[1][rank]));
        CHECK(test_support::same_bits(reached.back()[rank], expected.back()[rank]));
      }
    }
  }
}

TEST_CASE("partitioned lamb: a restored state goes on with the same bits") {
  for (const named_maker& kind : all_kinds()) {
    CAPTURE(kind.name);
    for (const int world : {1, 2, 3}) {
      CAPTURE(world);
      const experiment e = make_experiment(test_support::random_model(78, 6), 78, world, 6);
      const test_support::course whole = test_support::train_saving(e, kind.make);
      const test_support::course rest =
          test_support::train_saving(e, kind.make, {.from = &whole.at[3], .first_step = 3, .steps_before = 2});
      CHECK(rest.at.front() == whole.at[3]);
      CHECK(rest.at.back() == whole.at.back());
    }
  }
}

namespace {

std::vector<std::vector<std::byte>> states_of(const experiment& e, const optimizer_maker& make) {
  std::vector<std::vector<std::byte>> states(static_cast<std::size_t>(e.world));
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer optimizer = test_support::make_one(make, mine.parameters(), std::move(communicator));
    mine.set_gradient(e.gradients[0][rank]);
    optimizer.step(e.rates[0]);
    states[rank] = optimizer.save_state();
  });
  return states;
}

}  // namespace

TEST_CASE("partitioned lamb: a state of another rank, or of another number of ranks, is rejected") {
  const optimizer_maker make = test_support::maker_of<lamb<partition<slamb::int8>, slamb::int8>>({});
  const experiment two = make_experiment({{700}, {300}}, 79, 2, 1), three = make_experiment({{700}, {300}}, 79, 3, 1);
  const auto states = states_of(two, make);
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(two.tensors, two.start);
    made_optimizer optimizer = test_support::make_one(make, mine.parameters(), std::move(communicator));
    for (const bool from_other_ranks : {false, true}) {
      const std::string said = test_support::said_by<std::invalid_argument>(
          [&] { optimizer.load_state(states[1 - rank], {.from_other_ranks = from_other_ranks}); });
      CHECK(said.find("the state of rank " + std::to_string(1 - rank) + " of 2") != std::string::npos);
      CHECK(said.find("can load only its own state, of as many ranks") != std::string::npos);
    }
    CHECK(test_support::contains(test_support::said_by<std::invalid_argument>([&] {
                                   optimizer.save_state([](std::span<const std::byte>) {}, {.whole_tensors = true});
                                 }),
                                 "each rank has the state of a part"));
    optimizer.load_state(states[rank]);
  });
  slamb::run_ranks(3, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(three.tensors, three.start);
    made_optimizer optimizer = test_support::make_one(make, mine.parameters(), std::move(communicator));
    if (rank == 2) return;
    CHECK_THROWS_AS(optimizer.load_state(states[rank], {.from_other_ranks = true}), std::invalid_argument);
  });
  slamb::run_ranks(1, [&](thread_communicator communicator) {
    replica mine(two.tensors, two.start);
    made_optimizer alone = test_support::make_one(make, mine.parameters(), std::move(communicator));
    for (const bool from_other_ranks : {false, true})
      CHECK(test_support::contains(
          test_support::said_by<std::invalid_argument>(
              [&] { alone.load_state(states[0], {.from_other_ranks = from_other_ranks}); }),
          "the state of rank 0 of 2, but this is rank 0 of 1; a rank whose optimizer updates a part of the model can "
          "load only its own state"));
  });
}

TEST_CASE("partitioned lamb: a tensor without a gradient stays as it is") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const experiment e = exact_experiment({{300}, {700}, {40, 1}}, 80, world, 3);
    const auto train = [&](const optimizer_maker& make) {
      trajectory reached = test_support::place_of(e);
      slamb::run_ranks(world, [&](thread_communicator communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        replica mine(e.tensors, e.start);
        std::vector<slamb::parameter> parameters = mine.parameters();
        const slamb::parameter::gradient_pointer second = parameters[1].gradient;
        parameters[1].gradient = {};
        made_optimizer optimizer = test_support::make_one(make, parameters, std::move(communicator));
        for (std::size_t t = 0; t < e.steps(); ++t) {
          mine.set_gradient(e.gradients[t][rank]);
          if (t == 2) optimizer.set_gradient(1, second);
          optimizer.step(0.01);
          reached[t][rank] = mine.values();
        }
      });
      return reached;
    };
    const trajectory parts = train(test_support::maker_of<adamw<>>({}));
    CHECK(test_support::same_bits(parts, train(test_support::maker_of<whole_adamw>({}))));
    for (const named_maker& kind : all_kinds()) {
      CAPTURE(kind.name);
      const trajectory reached = train(kind.make);
      CHECK(all_agree(reached));
      for (std::size_t i = 300; i < 1000; ++i) REQUIRE(reached[1][0][i] == e.start[i]);
      CHECK(reached[2][0][500] != e.start[500]);
    }
  }
}

TEST_CASE("partitioned lamb: rows that take no part move by weight decay alone") {
  const std::vector<std::uint8_t> rows{1, 0, 1, 1, 0, 1, 1, 1};
  experiment e = make_experiment({{800}, {64}}, 81, 2, 3);
  e.tensors[0].options.rows = rows;
  const trajectory reached = test_support::train<adamw<partition<>, slamb::sign>>(e, {.weight_decay = 0.0});
  CHECK(all_agree(reached));
  for (std::size_t i = 0; i < 800; ++i) REQUIRE((reached.back()[0][i] == e.start[i]) == (rows[i / 100] == 0));
}

TEST_CASE("partitioned lamb: the state is 8/N bytes a parameter, and 4/N of exact parameters") {
  const model tensors{{40'000}, {3}, {0}, {10'000, 1}};
  for (const int world : {1, 2, 3, 4}) {
    CAPTURE(world);
    const experiment e = make_experiment(tensors, 82, world, 1);
    const std::size_t chunk =
        (50'003 + 128 * static_cast<std::size_t>(world) - 1) / (128 * static_cast<std::size_t>(world)) * 128;
    const std::size_t most = 4 * (chunk + 16 * tensors.size());
    slamb::run_ranks(world, [&](thread_communicator communicator) {
      replica mine(e.tensors, e.start);
      const lamb<partition<slamb::int8>> optimizer(mine.parameters(), {}, std::move(communicator));
      std::size_t exact = 0;
      for (const slamb::memory_report::use& use : optimizer.memory().uses) {
        if (use.purpose == "momentum" || use.purpose == "variance") CHECK(use.bytes <= most);
        if (use.purpose == "exact parameters") exact = use.bytes;
      }
      CHECK(exact <= (world == 1 ? 0 : most));
    });
  }
}

TEST_CASE("partitioned lamb: moved parameters, steps in parts and broadcast parameters") {
  for (const named_maker& kind : all_kinds()) {
    CAPTURE(kind.name);
    const experiment e = make_experiment({{300}, {700}, {40, 1}}, 83, 2, 4);
    const trajectory expected = test_support::train(e, kind.make);
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start), moved(e.tensors, e.start);
      made_optimizer optimizer = test_support::make_one(kind.make, mine.parameters(), std::move(communicator));
      for (std::size_t t = 0; t < e.steps(); ++t) {
        replica& now = t < 2 ? mine : moved;
        if (t == 2) {
          moved.set_values(mine.values());
          std::vector<slamb::parameter::data_pointer> data;
          std::vector<slamb::parameter::gradient_pointer> gradients;
          for (const slamb::parameter& p : moved.parameters()) {
            data.push_back(p.data);
            gradients.push_back(p.gradient);
          }
          optimizer.set_parameters(data, gradients);
        }
        now.set_gradient(e.gradients[t][rank]);
        if (t == 1) {
          optimizer.begin_step(e.rates[t]);
          optimizer.gradient_ready(2, 1);
          optimizer.gradient_ready(0, 2);
          optimizer.finish_step();
        } else {
          optimizer.step(e.rates[t]);
        }
        CHECK(test_support::same_bits(now.values(), expected[t][rank]));
      }
      if (rank == 0) moved.set_values(e.start);
      optimizer.broadcast_parameters(0);
      CHECK(test_support::same_bits(moved.values(), e.start));
      optimizer.step(0.0);
      CHECK(test_support::same_bits(moved.values(), e.start));  // nothing is left to be sent
    });
  }
}

TEST_CASE("partitioned lamb: a step counts with no tensors, or only empty ones") {
  for (const model& tensors : {model{}, model{{0}, {0, 1}}})
    for (const named_maker& kind : all_kinds()) {
      CAPTURE(kind.name);
      slamb::run_ranks(2, [&](thread_communicator communicator) {
        replica mine(tensors, {});
        made_optimizer optimizer = test_support::make_one(kind.make, mine.parameters(), std::move(communicator));
        optimizer.step(0.1);
        optimizer.step(0.1);
        CHECK(optimizer.statistics(true).step == 2);
        CHECK(optimizer.statistics(true).norm.parameters == 0.0);
      });
    }
}

TEST_CASE("partitioned adamw: norms are of the parts, and the measured error and what is unsent are small") {
  using in_bytes = adamw<partition<slamb::int8>, slamb::int8>;
  const experiment e = exact_experiment({{700}, {0}, {5000}, {40, 1}}, 85, 3, 3);
  std::vector<slamb::statistics> parts(3), whole(3), codes(3);
  const auto train = [&]<class Optimizer>(std::vector<slamb::statistics>& said, Optimizer* /*type*/) {
    slamb::run_ranks(3, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      Optimizer optimizer(mine.parameters(), {}, std::move(communicator));
      for (std::size_t t = 0; t < e.steps(); ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        if constexpr (requires { optimizer.measure_next_step(); }) optimizer.measure_next_step();
        optimizer.step(e.rates[t]);
      }
      said[rank] = optimizer.statistics(true);
    });
  };
  train(parts, static_cast<adamw<>*>(nullptr));
  train(whole, static_cast<whole_adamw*>(nullptr));
  train(codes, static_cast<in_bytes*>(nullptr));
  double momentum = 0.0, variance = 0.0;
  for (const slamb::statistics& said : parts) {
    CHECK(said.norm.parameters == doctest::Approx(whole[0].norm.parameters).epsilon(1e-9));
    CHECK(said.parameter_drift.empty());
    momentum += said.norm.momentum * said.norm.momentum;
    variance += said.norm.variance * said.norm.variance;
  }
  CHECK(std::sqrt(momentum) == doctest::Approx(whole[0].norm.momentum).epsilon(1e-9));
  CHECK(std::sqrt(variance) == doctest::Approx(whole[0].norm.variance).epsilon(1e-9));
  for (const slamb::statistics& said : codes) {
    REQUIRE(said.compression.size() == 1);
    CHECK(said.compression[0].relative() > 0.0);
    CHECK(said.compression[0].relative() < 0.02);
    REQUIRE(said.parameter_drift.size() == 1);
    CHECK(said.parameter_drift[0] > 0.0);
    CHECK(said.parameter_drift[0] < 0.02);
    CHECK(said.worker_error.size() == 1);
  }
}

TEST_CASE("partitioned adamw: what is unsent counts only tensors with exact parameters") {
  slamb::run_ranks(2, [](thread_communicator communicator) {
    experiment e = make_experiment({{1000}, {100, 1}}, 86, 2, 1);
    e.tensors[1].options.compress = false;
    e.tensors[1].options.group = 1;
    replica mine(e.tensors, e.start);
    adamw<partition<slamb::int8>, slamb::int8> optimizer(mine.parameters(), {}, std::move(communicator));
    mine.set_gradient(std::vector<float>(e.start.size(), 0.1F));
    const std::array rates{0.01, 0.01};
    for (int t = 0; t < 50; ++t) optimizer.step(rates);
    const std::vector<double> drift = optimizer.statistics(true).parameter_drift;
    REQUIRE(drift.size() == 2);
    CHECK(drift[0] > 0.0);
    CHECK(drift[0] < 0.01);
    CHECK(drift[1] == 0.0);
  });
}

TEST_CASE("partitioned adamw: moments are those of AdamW on one rank, and empty on several") {
  for (const int world : {1, 2})
    slamb::run_ranks(world, [&](thread_communicator communicator) {
      const experiment e = make_experiment({{300}, {0}, {20, 1}}, 87, 1, 1);
      replica mine(e.tensors, e.start), whole(e.tensors, e.start);
      adamw<> optimizer(mine.parameters(), {}, std::move(communicator));
      slamb::adamw<> expected(whole.parameters(), {}, slamb::self_communicator{});
      mine.set_gradient(e.gradients[0][0]);
      whole.set_gradient(e.gradients[0][0]);
      optimizer.step(0.1);
      expected.step(0.1);
      for (std::size_t l = 0; l < e.tensors.size(); ++l) {
        const auto its = optimizer.moments(l), same = expected.moments(l);
        CHECK(std::ranges::equal(its.momentum, world == 1 ? same.momentum : std::span<float>()));
        CHECK(std::ranges::equal(its.variance, world == 1 ? same.variance : std::span<float>()));
      }
    });
}

TEST_CASE("partitioned lamb: shards are rejected at construction") {
  const model tensors{{100}, {30}};
  const experiment e = make_experiment(tensors, 84, 1, 1);
  slamb::thread_group group(2), alone_a(1), alone_b(1);
  slamb::run_ranks(2, [&](const thread_communicator& thread) {
    const int rank = thread.rank();
    replica mine(e.tensors, e.start);
    using sharded = slamb::sharded_communicator<thread_communicator, thread_communicator>;
    const std::string said = test_support::said_by<std::invalid_argument>([&] {
      slamb::lamb<partition<>> optimizer(
          mine.parameters(), {}, sharded((rank == 0 ? alone_a : alone_b).communicator(0), group.communicator(rank)));
    });
    CHECK(said.find("has a shard group of 2 ranks") != std::string::npos);
  });
}

}  // namespace optimizer_partitioned_lamb_tests
