// Optimizers whose tensors are cut into shards, compared with the same optimizers over whole tensors: bit for bit where all is
// element by element, and to the rounding of sums over tensors elsewhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/every_recipe.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_tests {
namespace {

using test_support::alone;
using test_support::cut_anywhere;
using test_support::cut_model;
using test_support::experiment;
using test_support::largest_difference;
using test_support::maker_of;
using test_support::optimizer_maker;
using test_support::same_bits;
using test_support::shard_rank;
using test_support::train;
using test_support::train_in_shards;
using test_support::train_shards_alone;
using test_support::trajectory;
using test_support::with_dense_copies;

constexpr double tolerance = 1e-6;
constexpr double wrong = 1e-3;

/// A recipe with its settings.
struct row {
  std::string name;
  optimizer_maker make;
  bool by_element = false;  ///< no sums over tensors
};

/// A model with options, and gradients of several scales.
experiment some_experiment(std::uint64_t seed, int replicas, std::size_t steps) {
  return test_support::make_experiment(test_support::random_model(seed, 4), seed, replicas, steps);
}

/// Calls check(cuts) for several numbers of shards and ways of cutting.
template <class Check>
void for_all_cuts(const experiment& e, std::uint64_t seed, const Check& check) {
  for (const std::size_t shards : {2U, 3U, 4U})
    for (const bool copies : {false, true}) {
      CAPTURE(shards);
      CAPTURE(copies);
      check(cut_anywhere(e.tensors, shards, seed, copies));
    }
}

void check_as_whole(const row& r, const experiment& e, std::uint64_t seed) {
  CAPTURE(r.name);
  for_all_cuts(e, seed, [&](const cut_model& cuts) {
    const trajectory whole = train(with_dense_copies(e, cuts), r.make);
    const trajectory in_shards = train_in_shards(e, cuts, r.make);
    if (r.by_element)
      CHECK(same_bits(in_shards, whole));
    else
      CHECK(largest_difference(in_shards, whole) <= tolerance);
  });
}

using slamb::explicit_mask;
using blended = slamb::rescaled_trust_ratio<slamb::rescaling::blend>;

/// Recipes whose steps send no codes, and no elements by a mask that depends on the shards.
std::vector<row> recipes_without_codes() {
  const auto masked = [](double c, bool locally) {
    return maker_of<slamb::slamb<explicit_mask>>(
        {.max_gradient_norm = c, .clip_locally = locally, .local_steps = 3, .dense_below = 20});
  };
  constexpr double off = std::numeric_limits<double>::infinity();
  return {
      {"adamw", maker_of<slamb::adamw<>>({}), true},
      {"one_bit_adam, warm-up", maker_of<slamb::one_bit_adam<>>({.warm_up = {100}}), true},
      {"zero_one_adam, variance",
       maker_of<slamb::zero_one_adam<>>({.variance_schedule = {.freeze_step = 1000, .update_scaler = 1000}}), true},
      {"adamw, clipped", maker_of<slamb::adamw<>>({.max_gradient_norm = 1.0})},
      {"lamb", maker_of<slamb::lamb<>>({})},
      {"lamb, clipped",
       maker_of<slamb::lamb<>>({.max_gradient_norm = 1.0, .trust_ratio = {.lower = 0.01, .upper = 10}})},
      {"slamb, dense", maker_of<slamb::slamb<slamb::no_compressor>>({.local_steps = 3})},
      {"slamb, product", masked(off, false)},
      {"slamb, clipped", masked(1.0, false)},
      {"slamb, clipped locally", masked(1.0, true)},
      {"slamb, blend", maker_of<slamb::slamb<explicit_mask, blended>>({.local_steps = 3, .dense_below = 20})},
      {"one_bit_lamb, warm-up", maker_of<slamb::one_bit_lamb<>>({.warm_up = {100}})},
      {"one_bit_lamb, clipped", maker_of<slamb::one_bit_lamb<>>({.max_gradient_norm = 1.0, .warm_up = {100}})},
  };
}

}  // namespace

TEST_CASE("shards: steps without codes are those of whole tensors, with two replicas") {
  std::uint64_t seed = 300;
  for (const row& r : recipes_without_codes()) {
    ++seed;
    check_as_whole(r, some_experiment(seed, 2, 6), seed);
  }
}

TEST_CASE("shards: without replicas all phases are those of whole tensors") {
  for (const test_support::recipe& r : test_support::every_recipe_for_shards()) {
    if (r.averages_at_first || r.exchanges_differences) continue;  // SLAMB's masks are of shards
    const bool adapts = r.name.find("lamb") != std::string::npos;
    const bool clips = r.name == "lamb" || r.name == "lamb, int8";
    const experiment e = some_experiment(330, 1, clips ? 6 : test_support::steps_of_recipes);
    check_as_whole({r.name, r.make, !adapts && !clips}, e, 331);
  }
}

TEST_CASE("shards: without replicas SLAMB is that of whole tensors if masks are equal") {
  const experiment e = some_experiment(340, 1, 8);
  check_as_whole({"product", maker_of<slamb::slamb<explicit_mask>>({.dense_below = 20})}, e, 341);
  check_as_whole({"blend", maker_of<slamb::slamb<explicit_mask, blended>>({.dense_below = 20})}, e, 342);
}

TEST_CASE("shards: an optimizer of one shard alone reaches other parameters") {
  const experiment e = some_experiment(350, 2, 6);
  cut_model cuts;
  for (const test_support::tensor_spec& l : e.tensors) cuts.push_back(test_support::cut_at({l.size / 3, l.size}));
  for (const row& r : recipes_without_codes()) {
    CAPTURE(r.name);
    const double difference = largest_difference(train_shards_alone(e, cuts, r.make), train(e, r.make));
    if (r.by_element)
      CHECK(difference == 0.0);
    else
      CHECK(difference > wrong);
  }
}

TEST_CASE("shards: codes and masks are those of the shards alone") {
  using slamb::sign;
  using slamb::two_sided;
  const std::vector<row> rows{
      {"adamw, sign", maker_of<slamb::adamw<sign, two_sided<>>>({})},
      {"one_bit_adam", maker_of<slamb::one_bit_adam<>>({.warm_up = {3}})},
      {"one_bit_adam, by tensor",
       maker_of<slamb::one_bit_adam<>>(
           {.warm_up = {3}, .compressor = {.scales = slamb::scale_sharing::per_tensor, .zero_aware = true}})},
      {"zero_one_adam", maker_of<slamb::zero_one_adam<>>({.variance_schedule = {.freeze_step = 6, .update_scaler = 2},
                                                          .local_schedule = {.scaler = 2, .clipper = 4}})},
      {"slamb without ratios", maker_of<slamb::slamb<slamb::random_k<>, slamb::unit_trust_ratio>>(
                                   {.local_steps = 4, .dense_below = 0, .compressor = {.k = 0.3, .seed = 5}})},
  };
  const experiment e = some_experiment(360, 2, 12);
  for_all_cuts(e, 361, [&](const cut_model& cuts) {
    for (const row& r : rows) {
      CAPTURE(r.name);
      const trajectory in_shards = train_in_shards(e, cuts, r.make);
      CHECK(same_bits(in_shards, train_shards_alone(e, cuts, r.make)));
      CHECK_FALSE(same_bits(in_shards, train(with_dense_copies(e, cuts), r.make)));
    }
  });
}

TEST_CASE("shards: tensors below the size of dense_below are exchanged dense, whatever a shard has of them") {
  experiment e = test_support::make_experiment({{400}, {399}}, 370, 2, 4);
  for (auto& mask : e.masks) std::fill(mask.begin(), mask.end(), std::uint8_t{0});
  const cut_model cuts{test_support::cut_at({390, 400}), test_support::cut_at({10, 399})};
  const optimizer_maker make = maker_of<slamb::slamb<explicit_mask>>({.local_steps = 0, .dense_below = 400});
  const trajectory in_shards = train_in_shards(e, cuts, make);
  CHECK(largest_difference(in_shards, train(e, make)) <= tolerance);
  for (const trajectory& t : {in_shards}) {
    const std::span<const float> first(t.back()[0]), second(t.back()[1]);
    CHECK_FALSE(same_bits(first.first(390), second.first(390)));
    CHECK_FALSE(same_bits(first.subspan(390, 10), second.subspan(390, 10)));
  }
}

namespace {

/// The step after which each rank's warm-up has ended.
std::vector<std::uint64_t> ends_of_warm_up(const experiment& e, const cut_model& cuts, const optimizer_maker& make) {
  std::vector<std::uint64_t> ends(2 * test_support::shards_of(cuts));
  train_in_shards(e, cuts, make, [&](shard_rank& r, std::size_t t) {
    test_support::take_step(r, t);
    ends[r.at.replica * test_support::shards_of(cuts) + r.at.shard] = r.run.statistics().warm_up.ended_after;
  });
  return ends;
}

}  // namespace

TEST_CASE("shards: an automatic warm-up ends after the step of whole tensors, on all ranks") {
  // The variance of the first tensor is stable from the beginning; that of the second one shrinks for some steps.
  experiment e = test_support::make_experiment({{60}, {60}}, 380, 2, 60);
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (auto& gradient : e.gradients[t])
      for (std::size_t j = 0; j < 120; ++j)
        gradient[j] = j < 60 ? 1.0F : static_cast<float>(std::max(1.0, 10.0 * std::pow(0.9, static_cast<double>(t))));
  const optimizer_maker make =
      maker_of<slamb::one_bit_adam<slamb::automatic_warm_up>>({.beta2 = 0.75, .warm_up = {.most_steps = 100}});
  std::atomic<std::uint64_t> whole{0};
  slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    test_support::replica mine(e.tensors, e.start);
    test_support::made_optimizer run =
        make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(e.rates[t]);
    }
    whole = run.statistics().warm_up.ended_after;
  });
  REQUIRE(whole.load() > 30);
  REQUIRE(whole.load() < e.steps());
  for (const auto& ends : {std::vector<std::size_t>{60, 60}, std::vector<std::size_t>{30, 60}}) {
    const cut_model cuts{test_support::cut_at(ends), test_support::cut_at({60 - ends[0], 60})};
    for (const std::uint64_t end : ends_of_warm_up(e, cuts, make)) CHECK(end == whole.load());
  }
}

TEST_CASE("shards: the norm of clipping is that of whole tensors, and counts copies once") {
  const experiment e = some_experiment(390, 2, 3);
  const std::vector<row> rows{
      {"adamw", maker_of<slamb::adamw<>>({.max_gradient_norm = 1.0})},
      {"slamb", maker_of<slamb::slamb<explicit_mask>>({.max_gradient_norm = 1.0, .local_steps = 0})},
      {"one_bit_adam", maker_of<slamb::one_bit_adam<>>({.max_gradient_norm = 1.0, .warm_up = {1}})},
      {"one_bit_lamb", maker_of<slamb::one_bit_lamb<>>({.max_gradient_norm = 1.0, .warm_up = {1}})},
      {"zero_one_adam", maker_of<slamb::zero_one_adam<>>({.max_gradient_norm = 1.0})},
  };
  for (const row& r : rows) {
    CAPTURE(r.name);
    std::vector<double> whole(e.steps());
    slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      test_support::replica mine(e.tensors, e.start);
      test_support::made_optimizer run =
          r.make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
      for (std::size_t t = 0; t < e.steps(); ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        run.set_mask(e.masks[t]);
        run.step(e.rates[t]);
        if (rank == 0) whole[t] = run.statistics().gradient_norm.value();
      }
    });
    for_all_cuts(e, 391, [&](const cut_model& cuts) {
      const std::size_t shards = test_support::shards_of(cuts);
      std::vector<std::vector<double>> of_rank(2 * shards, std::vector<double>(e.steps()));
      train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
        test_support::take_step(rank, t);
        of_rank[rank.at.replica * shards + rank.at.shard][t] = rank.run.statistics().gradient_norm.value_or(-1.0);
      });
      for (const std::vector<double>& norms : of_rank) {
        CHECK(norms == of_rank[0]);  // equal bits on all ranks
        for (std::size_t t = 0; t < e.steps(); ++t) CHECK(norms[t] == doctest::Approx(whole[t]).epsilon(tolerance));
      }
    });
  }
}

TEST_CASE("shards: a group of one rank has the bits of ranks without shards") {
  const experiment e = some_experiment(400, 2, test_support::steps_of_recipes);
  cut_model cuts;
  for (const test_support::tensor_spec& l : e.tensors) cuts.push_back(test_support::cut_at({l.size}));
  for (const test_support::recipe& r : test_support::every_recipe_for_shards()) {
    CAPTURE(r.name);
    CHECK(same_bits(train_in_shards(e, cuts, r.make), train(e, r.make)));
  }
}

TEST_CASE("shards: all ranks of a group see equal copies, and replicas hold equal parameters") {
  const experiment e = some_experiment(410, 2, test_support::steps_of_recipes);
  const cut_model cuts = cut_anywhere(e.tensors, 3, 411);
  for (const test_support::recipe& r : test_support::every_recipe_for_shards()) {
    CAPTURE(r.name);
    const trajectory reached = train_in_shards(e, cuts, r.make);  // checks copies
    const bool is_local = r.averages_at_first || r.exchanges_differences;
    for (std::size_t t = 0; t < e.steps(); ++t)
      if (!is_local && r.name.find("zero_one") == std::string::npos) CHECK(test_support::ranks_agree(reached, t));
  }
}

namespace {

/// Gradients become ready in another order on each rank and in each step, and some only in finish_step().
void take_in_parts(shard_rank& r, std::size_t t) {
  std::vector<std::size_t> order(r.e.tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  test_support::random_source random(7, t, r.at.replica, r.at.shard);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  r.run.begin_step(r.e.rates[t]);
  for (std::size_t i = t % 3; i < order.size(); ++i) r.run.gradient_ready(order[i], 1);
  r.run.finish_step();
}

/// Prepares step t. In two steps a gradient of one rank is not finite.
void prepare_some_overflow(shard_rank& r, std::size_t t) {
  r.prepare(t);
  std::vector<float> gradient = r.gradient(t);
  if (gradient.empty()) return;
  if (t == 2 && r.at.replica == 1 && r.at.shard == 0) gradient.back() = std::numeric_limits<float>::infinity();
  if (t == 3 && r.at.replica == 0 && r.at.shard == 1) gradient.front() = std::numeric_limits<float>::quiet_NaN();
  r.mine.set_gradient(gradient);
}

}  // namespace

TEST_CASE("shards: steps in parts have the bits of whole steps") {
  constexpr std::uint64_t bucket = 1000;
  const std::vector<row> rows{
      {"adamw", maker_of<slamb::adamw<>>({.ranks = {.bucket_bytes = bucket}})},
      {"lamb", maker_of<slamb::lamb<>>({.ranks = {.bucket_bytes = bucket}})},
      {"lamb, clipped", maker_of<slamb::lamb<>>({.max_gradient_norm = 0.5, .ranks = {.bucket_bytes = bucket}})},
      {"slamb", maker_of<slamb::slamb<slamb::random_k<>>>(
                    {.local_steps = 2, .dense_below = 20, .ranks = {.bucket_bytes = bucket}})},
      {"one_bit_lamb", maker_of<slamb::one_bit_lamb<>>({.ranks = {.bucket_bytes = bucket}, .warm_up = {.steps = 3}})},
      {"zero_one_adam", maker_of<slamb::zero_one_adam<>>({.ranks = {.bucket_bytes = bucket}})},
  };
  for (const int replicas : {1, 2}) {
    const experiment e = some_experiment(420, replicas, 8);
    for (const std::size_t shards : {2U, 3U}) {
      const cut_model cuts = cut_anywhere(e.tensors, shards, 421);
      for (const row& r : rows) {
        CAPTURE(r.name);
        const auto trained = [&](bool in_parts) {
          std::vector<std::vector<std::byte>> states(static_cast<std::size_t>(replicas) * shards);
          trajectory reached = train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
            prepare_some_overflow(rank, t);
            if (in_parts)
              take_in_parts(rank, t);
            else
              rank.run.step(e.rates[t]);
            states[rank.at.replica * shards + rank.at.shard] = rank.run.save_state();
          });
          return std::pair(std::move(reached), std::move(states));
        };
        const auto whole = trained(false), in_parts = trained(true);
        CHECK(same_bits(in_parts.first, whole.first));
        CHECK(in_parts.second == whole.second);
      }
    }
  }
}

TEST_CASE("shards: the optimizer may be over all kinds of communicators of shards") {
  const experiment e = some_experiment(430, 1, 4);
  const cut_model cuts = cut_anywhere(e.tensors, 2, 431);
  const trajectory expected = train_in_shards(e, cuts, maker_of<slamb::lamb<>>({}));
  test_support::sharded_trajectory reached(e, cuts);
  slamb::run_ranks(2, [&](slamb::thread_communicator group) {
    const test_support::shard_place at{0, static_cast<std::size_t>(group.rank())};
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    test_support::replica mine(test_support::shard_of(e.tensors, cuts, at.shard),
                               test_support::taken(e.start, elements));
    slamb::lamb<> run(mine.parameters(), {}, slamb::sharded_communicator(std::move(group)), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(test_support::taken(e.gradients[t][0], elements));
      run.step(e.rates[t]);
      reached.at(t, at) = mine.values();
    }
  });
  CHECK(same_bits(reached.whole(), expected));
}

TEST_CASE("shards: parts without elements may have null pointers") {
  const experiment e = test_support::make_experiment({{40}, {30}}, 440, 2, 4);
  const cut_model cuts{test_support::cut_at({40, 40}), test_support::cut_at({0, 30})};
  const trajectory expected = train(e, maker_of<slamb::lamb<>>({}));
  test_support::sharded_trajectory reached(e, cuts);
  test_support::thread_shards(2, 2).run([&](test_support::shards_of_threads ranks, test_support::shard_place at) {
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    std::vector<float> data = test_support::taken(e.start, elements), gradient(data.size());
    std::vector<slamb::parameter> tensors(2);
    tensors[at.shard] = {.data = data.data(), .gradient = gradient.data(), .size = data.size()};
    slamb::lamb<> run(tensors, {}, std::move(ranks), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      gradient = test_support::taken(e.gradients[t][at.replica], elements);
      run.set_gradient(at.shard, gradient.data());
      run.step(e.rates[t]);
      reached.at(t, at) = data;
    }
  });
  CHECK(largest_difference(reached.whole(), expected) <= tolerance);
}

}  // namespace properties_shards_tests
