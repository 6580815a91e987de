// The collectives within a shard group: their number in each step, which does not depend on the number of tensors.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_traffic_tests {
namespace {

using test_support::cut_model;
using test_support::experiment;
using test_support::maker_of;
using test_support::optimizer_maker;
using test_support::shard_rank;

constexpr std::size_t shards = 2, steps = 4;

/// The same elements in this number of tensors, cut in the middle.
experiment of_tensors(std::size_t tensors, int replicas) {
  return test_support::make_experiment(test_support::model(tensors, {.size = 1200 / tensors}), 900, replicas, steps);
}
cut_model halves(const experiment& e, std::size_t of) {
  cut_model cuts;
  for (const test_support::tensor_spec& l : e.tensors)
    cuts.push_back(of == 1 ? test_support::cut_at({l.size}) : test_support::cut_at({l.size / 2, l.size}));
  return cuts;
}

/// Traffic of one rank in each step; checks that all ranks have the same.
std::vector<slamb::traffic> in_shards(const experiment& e, const cut_model& cuts, const optimizer_maker& make) {
  const std::size_t each = test_support::shards_of(cuts);
  std::vector<std::vector<slamb::traffic>> all(each * static_cast<std::size_t>(e.world));
  train_in_shards(e, cuts, make, [&](shard_rank& r, std::size_t t) {
    const slamb::traffic before = r.run.statistics().in_shards;
    test_support::take_step(r, t);
    all[r.at.replica * each + r.at.shard].push_back(r.run.statistics().in_shards - before);
  });
  for (const std::vector<slamb::traffic>& of_rank : all) CHECK(of_rank == all[0]);
  return all[0];
}

struct expected {
  std::string name;
  optimizer_maker make;
  std::vector<std::uint64_t> rounds;  // [steps]
  bool equalizes = false;             // the momenta of all tensors, in the last step of the warm-up
};

std::vector<expected> some_recipes() {
  return {
      {"adamw", maker_of<slamb::adamw<>>({}), {1, 1, 1, 1}},
      {"adamw, clipped", maker_of<slamb::adamw<>>({.max_gradient_norm = 1.0}), {2, 2, 2, 2}},
      {"lamb", maker_of<slamb::lamb<>>({}), {2, 2, 2, 2}},
      {"lamb, clipped", maker_of<slamb::lamb<>>({.max_gradient_norm = 1.0}), {3, 3, 3, 3}},
      {"slamb", maker_of<slamb::slamb<>>({.local_steps = 0, .dense_below = 0}), {2, 2, 2, 2}},
      {"one_bit_adam", maker_of<slamb::one_bit_adam<>>({.warm_up = {2}}), {1, 1, 1, 1}},
      {"one_bit_lamb", maker_of<slamb::one_bit_lamb<>>({.warm_up = {1}}), {2, 2, 2, 2}, true},
      {"zero_one_adam", maker_of<slamb::zero_one_adam<>>({}), {1, 1, 1, 1}},
  };
}

}  // namespace

TEST_CASE("shards: the rounds within a shard group are counted, and are as many for any number of tensors") {
  for (const int replicas : {1, 2})
    for (const expected& its : some_recipes()) {
      CAPTURE(replicas);
      CAPTURE(its.name);
      for (const std::size_t tensors : {3U, 300U}) {
        CAPTURE(tensors);
        const experiment e = of_tensors(tensors, replicas);
        std::vector<std::uint64_t> rounds;
        for (const slamb::traffic& of_step : in_shards(e, halves(e, shards), its.make))
          rounds.push_back(of_step.rounds);
        std::vector<std::uint64_t> expected_rounds = its.rounds;
        if (its.equalizes && replicas > 1) expected_rounds[0] += 1;
        CHECK(rounds == expected_rounds);
      }
    }
}

TEST_CASE("shards: bytes within a shard group are a few for each tensor") {
  for (const std::size_t tensors : {3U, 300U}) {
    const experiment e = of_tensors(tensors, 2);
    const auto of_adamw = in_shards(e, halves(e, shards), maker_of<slamb::adamw<>>({}));
    const auto of_lamb = in_shards(e, halves(e, shards), maker_of<slamb::lamb<>>({}));
    const slamb::traffic sums = of_lamb[2] - of_adamw[2];
    CHECK(sums.payload_bytes == shards * tensors * 2 * sizeof(double));
    CHECK(sums.sent_bytes == (shards - 1) * tensors * 2 * sizeof(double));
    CHECK(of_adamw[2].payload_bytes <= shards * 64);
  }
}

TEST_CASE("shards: without a shard group, or with one rank in it, there is no traffic in it") {
  const experiment e = of_tensors(3, 2);
  for (const expected& its : some_recipes()) {
    CAPTURE(its.name);
    for (const slamb::traffic& of_step : in_shards(e, halves(e, 1), its.make)) CHECK(of_step == slamb::traffic{});
  }
}

TEST_CASE("shards: the traffic between replicas is that of the shards alone") {
  const experiment e = of_tensors(3, 2);
  const cut_model cuts = halves(e, shards);
  for (const test_support::recipe& r : test_support::every_recipe_for_shards()) {
    CAPTURE(r.name);
    std::vector<slamb::traffic_counts> alone(2), sharded(2);
    slamb::run_ranks(2, [&](slamb::thread_communicator ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      const experiment its = test_support::alone(e, cuts, 0);
      test_support::replica mine(its.tensors, its.start);
      test_support::made_optimizer run =
          r.make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
      for (std::size_t t = 0; t < steps; ++t) {
        mine.set_gradient(its.gradients[t][rank]);
        run.step(0.01);
      }
      alone[rank] = run.statistics().traffic;
    });
    train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
      rank.prepare(t);
      rank.run.step(0.01);
      if (rank.at.shard == 0) sharded[rank.at.replica] = rank.run.statistics().traffic;
    });
    CHECK(sharded == alone);
  }
}

}  // namespace properties_shards_traffic_tests
