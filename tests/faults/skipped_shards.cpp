// Steps that all ranks skip because one rank of one shard has a gradient that is not finite: nothing changes on any of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/skipped_training.hpp"
#include "support/thread_shards.hpp"

namespace faults_skipped_shards_tests {
namespace {

using test_support::complaints;
using test_support::cut_anywhere;
using test_support::cut_model;
using test_support::every_recipe_for_shards;
using test_support::experiment;
using test_support::recipe;
using test_support::same_bits;
using test_support::shard_place;
using test_support::shard_rank;
using test_support::trajectory;
using test_support::without_skips;

using states_of_ranks = std::vector<std::vector<std::byte>>;

std::string at_step(std::size_t t) { return " at step " + std::to_string(t + 1); }

/// The ranks of a training in shards.
struct ranks {
  std::size_t shards;
  int replicas;

  std::size_t count() const { return shards * static_cast<std::size_t>(replicas); }
  std::size_t number(shard_place at) const { return at.replica * shards + at.shard; }
};

experiment some_experiment(std::uint64_t seed, int replicas) {
  test_support::model tensors{{17}, {9100}, {0}, {33, 1}, {300}, {129}};
  tensors[5].options.compress = false;
  experiment e = test_support::make_experiment(tensors, seed, replicas, test_support::steps_of_recipes);
  test_support::use_one_rate(e, 0.01);
  return e;
}

/// The rank that has the fault of step t.
bool is_culprit(const ranks& all, shard_place at, std::size_t t) { return all.number(at) == (5 * t + 1) % all.count(); }

/// Sets a gradient that is not usable on the culprit, and that of another step on the others.
void set_overflow(const ranks& all, shard_rank& r, std::size_t t) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr std::array unusable{std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 1e30F, -1e30F};
  std::vector<float> gradient = r.gradient((t + 1) % r.e.steps());
  if (is_culprit(all, r.at, t)) gradient[(7 * t) % gradient.size()] = unusable[t % unusable.size()];
  r.mine.set_gradient(gradient);
}

/// All that a skipped step may not change on a rank.
struct snapshot {
  std::vector<float> values;
  std::vector<std::byte> state;
  slamb::statistics said;

  explicit snapshot(const shard_rank& r)
      : values(r.mine.values()), state(r.run.save_state()), said(r.run.statistics(true)) {}

  void require_skipped(const shard_rank& r, complaints& wrong, bool sets_anchor, const std::string& where) const {
    const snapshot now(r);
    wrong.require(same_bits(now.values, values), "other parameters" + where);
    wrong.require(sets_anchor || without_skips(now.state) == without_skips(state), "another state" + where);
    wrong.require(now.said.step == said.step, "the step counts" + where);
    wrong.require(now.said.skipped_steps == said.skipped_steps + 1, "not skipped" + where);
    wrong.require(!now.said.has_diverged, "ranks have diverged" + where);
  }
};

/// Calls check(recipe, e, cuts, ranks, wrong) for every recipe and some shard groups.
template <class Check>
void for_all(std::uint64_t seed, const std::vector<ranks>& groups, const Check& check) {
  for (const recipe& r : every_recipe_for_shards())
    for (const ranks& all : groups) {
      const std::string where =
          r.name + ", " + std::to_string(all.replicas) + " groups of " + std::to_string(all.shards);
      CAPTURE(where);
      const experiment e = some_experiment(seed, all.replicas);
      complaints wrong;
      check(r, e, cut_anywhere(e.tensors, all.shards, seed), all, wrong);
      CHECK(wrong.text() == "");
    }
}

bool is_silent(const recipe& r, const ranks& all, std::size_t t) { return all.replicas > 1 && r.rounds[t] == 0; }

/// Trains, and calls before(rank, t) before each step.
struct course {
  trajectory values;
  states_of_ranks states;
};
template <class Before>
course trained(const recipe& r, const experiment& e, const cut_model& cuts, const ranks& all, const Before& before) {
  course its{.values = {}, .states = states_of_ranks(all.count())};
  its.values = train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
    before(rank, t);
    test_support::take_step(rank, t);
    its.states[all.number(rank.at)] = without_skips(rank.run.save_state());
  });
  return its;
}

const auto nothing = [](shard_rank& /*rank*/, std::size_t /*t*/) {};

void require_same(complaints& wrong, const course& reached, const course& expected) {
  wrong.require(same_bits(reached.values, expected.values), "other parameters in the end");
  wrong.require(reached.states == expected.states, "another state in the end");
}

}  // namespace

TEST_CASE("shards: a gradient that is not finite on one rank skips the step on all ranks, and changes nothing") {
  for_all(600, {{2, 2}, {3, 1}},
          [](const recipe& r, const experiment& e, const cut_model& cuts, const ranks& all, complaints& wrong) {
            const course twin = trained(r, e, cuts, all, nothing);
            require_same(wrong,
                         trained(r, e, cuts, all,
                                 [&](shard_rank& rank, std::size_t t) {
                                   if (is_silent(r, all, t)) return;
                                   set_overflow(all, rank, t);
                                   const snapshot before(rank);
                                   rank.run.step(2.0 * e.rates[t][0]);
                                   before.require_skipped(rank, wrong, r.exchanges_differences && t == 0, at_step(t));
                                 }),
                         twin);
          });
}

TEST_CASE("shards: found_inf of one rank skips the step on all, and is set on all") {
  for_all(610, {{2, 2}, {3, 1}},
          [](const recipe& r, const experiment& e, const cut_model& cuts, const ranks& all, complaints& wrong) {
            const course twin = trained(r, e, cuts, all, nothing);
            std::vector<float> found(all.count(), 0.0F);
            const course reached = trained(r, e, cuts, all, [&](shard_rank& rank, std::size_t t) {
              float& cell = found[all.number(rank.at)];
              rank.run.set_gradient_scaling({.found_inf = &cell});
              wrong.require(cell == 0.0F, "found_inf is set" + at_step(t));
              if (is_silent(r, all, t) || t % 3 == 1) return;
              const snapshot before(rank);
              if (t % 3 == 0) {
                rank.prepare((t + 1) % e.steps());
                cell = is_culprit(all, rank.at, t) ? 2.0F : 0.0F;
              } else {
                set_overflow(all, rank, t);
              }
              rank.run.step(2.0 * e.rates[t][0]);
              before.require_skipped(rank, wrong, r.exchanges_differences && t == 0, at_step(t));
              wrong.require(cell == 1.0F, "found_inf is not set" + at_step(t));
              cell = 0.0F;
            });
            require_same(wrong, reached, twin);
          });
}

TEST_CASE("shards: in a local step of 0/1 Adam all shards of one replica leave out its gradient") {
  int local_steps = 0;
  for_all(620, {{2, 2}, {3, 2}},
          [&](const recipe& r, const experiment& e, const cut_model& cuts, const ranks& all, complaints& wrong) {
            const course twin = trained(r, e, cuts, all, nothing);
            const auto first = std::find(r.rounds.begin() + 1, r.rounds.end(), std::uint64_t{0});
            if (first == r.rounds.end()) return;
            const auto when = static_cast<std::size_t>(first - r.rounds.begin());
            ++local_steps;
            std::vector<float> found(all.count(), 0.0F);
            std::vector<std::vector<std::uint64_t>> skips(all.count());
            std::vector<float> before;
            const trajectory reached = train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
              float& cell = found[all.number(rank.at)];
              rank.run.set_gradient_scaling({.found_inf = &cell});
              rank.prepare(t);
              std::vector<float> gradient = rank.gradient(t);
              if (t == when && rank.at.replica == 1 && rank.at.shard == all.shards - 1)
                gradient[gradient.size() / 2] = std::numeric_limits<float>::quiet_NaN();
              rank.mine.set_gradient(gradient);
              const std::vector<float> values = rank.mine.values();
              rank.run.step(e.rates[t]);
              const bool drops = t == when && rank.at.replica == 1;
              wrong.require(cell == (drops ? 1.0F : 0.0F), "found_inf" + at_step(t));
              if (drops) wrong.require(same_bits(rank.mine.values(), values), "the rank has moved" + at_step(t));
              cell = 0.0F;
              const slamb::statistics said = rank.run.statistics();
              wrong.require(said.step == t + 1, "the step does not count" + at_step(t));
              wrong.require(said.skipped_steps == 0, "a skipped step" + at_step(t));
              wrong.require(said.local_skips == (t >= when && rank.at.replica == 1 ? 1 : 0),
                            "local skips" + at_step(t));
            });
            for (std::size_t t = 0; t <= when; ++t) {
              wrong.require(same_bits(reached[t][0], twin.values[t][0]), "another replica has moved" + at_step(t));
              wrong.require(same_bits(reached[t][1], twin.values[t][1]) == (t < when), "replica 1" + at_step(t));
            }
          });
  CHECK(local_steps >= 2);
}

TEST_CASE("shards: a copy of a tensor that overflows on one rank alone skips the step on all") {
  const experiment e = test_support::make_experiment({{40}, {30}}, 630, 2, 2);
  const cut_model cuts{test_support::replicated(40, 3), test_support::cut_at({10, 10, 30})};
  for (const recipe& r : every_recipe_for_shards()) {
    CAPTURE(r.name);
    complaints wrong;
    train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
      if (t == 0) return test_support::take_step(rank, t);
      rank.prepare(t);
      std::vector<float> gradient = rank.gradient(t);
      if (rank.at.replica == 0 && rank.at.shard == 2) gradient[39] = std::numeric_limits<float>::infinity();
      rank.mine.set_gradient(gradient);
      const snapshot before(rank);
      rank.run.step(0.01);
      before.require_skipped(rank, wrong, false, at_step(t));
    });
    CHECK(wrong.text() == "");
  }
}

TEST_CASE("shards: an invalid rate on one rank, in memory that steps read, skips the step on all") {
  for_all(640, {{2, 2}, {3, 1}},
          [](const recipe& r, const experiment& e, const cut_model& cuts, const ranks& all, complaints& wrong) {
            const course twin = trained(r, e, cuts, all, nothing);
            require_same(wrong,
                         trained(r, e, cuts, all,
                                 [&](shard_rank& rank, std::size_t t) {
                                   if (is_silent(r, all, t) || t % 2 == 1) return;
                                   rank.prepare(t);
                                   const double rate = is_culprit(all, rank.at, t) ? -1.0 : 0.01;
                                   const snapshot before(rank);
                                   rank.run.step(slamb::device_learning_rates{&rate});
                                   before.require_skipped(rank, wrong, r.exchanges_differences && t == 0, at_step(t));
                                 }),
                         twin);
          });
}

TEST_CASE(
    "shards: an exchange of differences that are not finite on one rank is skipped by all, and the step is taken") {
  const experiment e = test_support::make_experiment({{40}, {30, 1}}, 645, 2, 4);
  const cut_model cuts{test_support::cut_at({10, 40}), test_support::replicated(30, 2)};
  for (const recipe& r : every_recipe_for_shards()) {
    if (!r.exchanges_differences) continue;
    for (const std::size_t shard : {0U, 1U}) {
      std::array<slamb::statistics, 4> said;
      train_each_shard<slamb::host_backend>(e, cuts, r.make, test_support::one_thread(),
                                            [&](shard_rank& rank, std::size_t t) {
                                              if (t == 2 && rank.at.replica == 1 && rank.at.shard == shard) {
                                                std::vector<float> values = rank.mine.values();
                                                values[5] = std::numeric_limits<float>::infinity();
                                                rank.mine.set_values(values);
                                              }
                                              test_support::take_step(rank, t);
                                              if (t == 2)
                                                said[2 * rank.at.replica + rank.at.shard] = rank.run.statistics();
                                            });
      for (const slamb::statistics& its : said) {
        CHECK(its.step == 3);
        CHECK(its.skipped_exchanges == 1);
        CHECK(its.skipped_steps == 0);
      }
    }
  }
}

}  // namespace faults_skipped_shards_tests
