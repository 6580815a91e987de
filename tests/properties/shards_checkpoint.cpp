// Trainings in shards that are saved and resumed, and states of other shards, which are rejected.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"
#include "support/saved_training.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_checkpoint_tests {
namespace {

using test_support::checkpoint;
using test_support::contains;
using test_support::cut_at;
using test_support::cut_model;
using test_support::every_recipe;
using test_support::experiment;
using test_support::said_by;
using test_support::shard_rank;

constexpr std::size_t shards = 3;

using checkpoints = std::vector<std::vector<checkpoint>>;  // [steps + 1][rank]

std::size_t number(const shard_rank& r) { return r.at.replica * shards + r.at.shard; }

experiment some_experiment(std::uint64_t seed, int replicas) {
  return test_support::make_experiment(test_support::random_model(seed, 2), seed, replicas,
                                       test_support::steps_of_recipes);
}

/// Trains, and keeps all that is needed to resume before each step and after the last.
checkpoints trained(const experiment& e, const cut_model& cuts, const test_support::optimizer_maker& make) {
  checkpoints all(e.steps() + 1, std::vector<checkpoint>(shards * static_cast<std::size_t>(e.world)));
  train_in_shards(e, cuts, make, [&](shard_rank& r, std::size_t t) {
    if (t == 0) all[0][number(r)] = {r.run.save_state(), r.mine.values()};
    test_support::take_step(r, t);
    all[t + 1][number(r)] = {r.run.save_state(), r.mine.values()};
  });
  return all;
}

}  // namespace

TEST_CASE("shards: every recipe resumes bit for bit") {
  for (const int replicas : {1, 2}) {
    const experiment e = some_experiment(800, replicas);
    const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 801);
    for (const test_support::recipe& r : every_recipe()) {
      CAPTURE(r.name);
      CAPTURE(replicas);
      const checkpoints whole = trained(e, cuts, r.make);
      for (const std::size_t when : {1U, 4U, 7U, 11U}) {
        CAPTURE(when);
        checkpoints rest = whole;
        train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
          if (t < when) return;
          if (t == when) {
            rank.run.load_state(whole[t][number(rank)].state);
            rank.mine.set_values(whole[t][number(rank)].values);
          }
          test_support::take_step(rank, t);
          rest[t + 1][number(rank)] = {rank.run.save_state(), rank.mine.values()};
        });
        CHECK(rest == whole);
      }
    }
  }
}

namespace {

/// The message of a load, if it throws, on the rank of this shard among `count` ranks that have equal parts; it must change nothing.
std::string refusal(std::size_t count, std::size_t shard, const std::vector<std::byte>& state,
                    const slamb::restore_options& options = {}) {
  const experiment e = test_support::make_experiment({{12 * count}, {33, 1}}, 810, 1, 1);
  std::vector<std::size_t> ends(count);
  for (std::size_t s = 0; s < count; ++s) ends[s] = 12 * (s + 1);
  std::string said;
  train_in_shards(e, {cut_at(ends), test_support::replicated(33, count)}, test_support::maker_of<slamb::lamb<>>({}),
                  [&](shard_rank& r, std::size_t t) {
                    test_support::take_step(r, t);
                    if (r.at.shard != shard) return;
                    const std::vector<std::byte> before = r.run.save_state();
                    said = said_by<std::invalid_argument>([&] { r.run.load_state(state, options); });
                    if (r.run.save_state() != before && said != "nothing was thrown") said += " AND CHANGED";
                  });
  return said;
}

/// A state that fits any of these optimizers but for its shard.
std::vector<std::byte> state_of(std::size_t count, std::size_t shard) {
  const experiment e = test_support::make_experiment({{12 * count}, {33, 1}}, 810, 1, 2);
  std::vector<std::size_t> ends(count);
  for (std::size_t s = 0; s < count; ++s) ends[s] = 12 * (s + 1);
  std::vector<std::byte> state;
  train_in_shards(e, {cut_at(ends), test_support::replicated(33, count)}, test_support::maker_of<slamb::lamb<>>({}),
                  [&](shard_rank& r, std::size_t t) {
                    test_support::take_step(r, t);
                    if (r.at.shard == shard) state = r.run.save_state();
                  });
  return state;
}

}  // namespace

TEST_CASE("shards: a state of another shard, or of another number of shards, is rejected, and changes nothing") {
  const std::string remedy = "; a rank can load only the state of its own shard, of as many shards";
  CHECK(refusal(3, 1, state_of(3, 1)) == "nothing was thrown");
  for (const bool from_other_ranks : {false, true}) {
    const slamb::restore_options options{from_other_ranks};
    CHECK(contains(refusal(3, 1, state_of(3, 2), options),
                   "the state of rank 0 of 1, shard 2 of 3, but this is rank 0 of 1, shard 1 of 3" + remedy));
    CHECK(contains(refusal(3, 1, state_of(2, 1), options),
                   "the state of rank 0 of 1, shard 1 of 2, but this is rank 0 of 1, shard 1 of 3" + remedy));
    CHECK(contains(refusal(3, 0, state_of(1, 0), options),
                   "the state of rank 0 of 1, but this is rank 0 of 1, shard 0 of 3" + remedy));
    CHECK(contains(refusal(1, 0, state_of(3, 0), options),
                   "the state of rank 0 of 1, shard 0 of 3, but this is rank 0 of 1" + remedy));
  }
}

TEST_CASE("shards: a state says its shard in words") {
  const std::vector<std::byte> state = state_of(3, 2);
  const std::string text(reinterpret_cast<const char*>(state.data()), 400);
  CHECK(contains(text, "rank        0 of 1, shard 2 of 3\n"));
}

TEST_CASE("shards: a training continues with another number of replicas, from the states of the same shards") {
  const experiment two = some_experiment(820, 2);
  const cut_model cuts = test_support::cut_anywhere(two.tensors, shards, 821);
  const auto make = test_support::maker_of<slamb::lamb<>>({});
  const checkpoints saved = trained(two, cuts, make);
  experiment three = test_support::make_experiment(two.tensors, 822, 3, 6);
  experiment one = three;
  one.world = 1;
  for (experiment* other : {&three, &one}) {
    const auto resumed = [&](bool is_loaded) {
      return train_in_shards(*other, cuts, make, [&](shard_rank& r, std::size_t t) {
        if (t == 0 && is_loaded) {
          r.run.load_state(saved[4][r.at.shard].state, {.from_other_ranks = true});
          r.mine.set_values(saved[4][r.at.shard].values);
        }
        test_support::take_step(r, t);
        if (is_loaded) CHECK(r.run.statistics().step == 5 + t);
      });
    };
    CHECK_FALSE(test_support::same_bits(resumed(true), resumed(false)));
  }
}

TEST_CASE("shards: states of different steps are rejected on all ranks at the first step") {
  const experiment e = some_experiment(830, 2);
  const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 831);
  for (const test_support::recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const checkpoints saved = trained(e, cuts, r.make);
    for (const bool whole_shard : {false, true}) {
      std::vector<std::string> said(2 * shards);
      train_each_shard<slamb::host_backend>(
          e, cuts, r.make, test_support::one_thread(), [&](shard_rank& rank, std::size_t t) {
            if (t != 9) return;
            const bool is_behind = rank.at.shard == 2 && (whole_shard || rank.at.replica == 1);
            const checkpoint& from = saved[is_behind ? 8 : 9][number(rank)];
            rank.run.load_state(from.state);
            rank.mine.set_values(from.values);
            rank.prepare(t);
            said[number(rank)] = said_by<slamb::rank_mismatch_error>([&] { rank.run.step(e.rates[t]); });
          });
      for (const std::string& text : said)
        CHECK(contains(text,
                       std::string("slamb: ranks differ in the number of their step: 10 on rank 0, shard 0, 9 on ") +
                           (whole_shard ? "rank 0, shard 2" : "rank 1, shard 2")));
    }
  }
}

}  // namespace properties_shards_checkpoint_tests
