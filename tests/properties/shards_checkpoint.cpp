// Trainings in shards that are saved and resumed, and states of other shards, which are rejected.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/checkpoint.hpp"
#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/files.hpp"
#include "support/said.hpp"
#include "support/saved_training.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_checkpoint_tests {
namespace {

using test_support::checkpoint;
using test_support::contains;
using test_support::cut_at;
using test_support::cut_model;
using test_support::every_recipe_for_shards;
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
    for (const test_support::recipe& r : every_recipe_for_shards()) {
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
  train_each_shard<slamb::host_backend>(
      e, {cut_at(ends), test_support::replicated(33, count)}, test_support::maker_of<slamb::lamb<>>({}),
      test_support::one_thread(), [&](shard_rank& r, std::size_t t) {
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
  const std::string of_whole = "; to take this shard from a state of whole tensors, pass restore_options";
  CHECK(refusal(3, 1, state_of(3, 1)) == "nothing was thrown");
  for (const bool from_other_ranks : {false, true}) {
    const slamb::restore_options options{from_other_ranks};
    CHECK(contains(refusal(3, 1, state_of(3, 2), options),
                   "the state of rank 0 of 1, shard 2 of 3, but this is rank 0 of 1, shard 1 of 3" + remedy));
    CHECK(contains(refusal(3, 1, state_of(2, 1), options),
                   "the state of rank 0 of 1, shard 1 of 2, but this is rank 0 of 1, shard 1 of 3" + remedy));
    CHECK(contains(refusal(3, 0, state_of(1, 0), options),
                   "the state of rank 0 of 1, but this is rank 0 of 1, shard 0 of 3" + of_whole));
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

TEST_CASE("shards: a rank that fails to load a state behind the end of a shorter warm-up keeps no other waiting") {
  const experiment e = some_experiment(825, 2);
  const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 826);
  const auto make = test_support::maker_of<slamb::one_bit_lamb<>>({.warm_up = {20}});
  const auto shorter = test_support::maker_of<slamb::one_bit_lamb<>>({.warm_up = {2}});
  const checkpoints saved = trained(e, cuts, make);
  const auto resumed = [&](bool fails) {
    return train_in_shards(e, cuts, shorter, [&](shard_rank& r, std::size_t t) {
      if (t < 5) return;
      const checkpoint& own = saved[5][number(r)];
      if (t == 5) {
        if (fails && r.at.shard == 1) {
          std::vector<std::byte> truncated(own.state.begin(), own.state.end() - 8);
          CHECK_THROWS_AS(r.run.load_state(truncated), std::invalid_argument);
          // No other rank is in a collective now: this one would get its parts there.
        }
        r.run.load_state(own.state);
        r.mine.set_values(own.values);
        CHECK(r.run.statistics().in_shards.rounds == 0);
      }
      test_support::take_step(r, t);
      if (t == 5) CHECK(r.run.statistics().phase == "compressed");
    });
  };
  CHECK(test_support::same_bits(resumed(true), resumed(false)));
}

TEST_CASE("shards: states of different steps are rejected on all ranks at the first step") {
  const experiment e = some_experiment(830, 2);
  const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 831);
  for (const test_support::recipe& r : every_recipe_for_shards()) {
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

// ---------------------------------------------------------------------------------------------------------- whole tensors

namespace {

/// [replicas] states of whole tensors after `when` steps in shards, with the parameters if asked for.
std::vector<std::vector<std::byte>> whole_states(const experiment& e, const cut_model& cuts,
                                                 const test_support::optimizer_maker& make, std::size_t when,
                                                 bool with_parameters = true) {
  std::vector<std::vector<std::byte>> states(static_cast<std::size_t>(e.world));
  experiment first = e;
  first.gradients.resize(when + 1);
  train_each_shard<slamb::host_backend>(
      first, cuts, make, test_support::one_thread(), [&](shard_rank& r, std::size_t t) {
        if (t < when) return test_support::take_step(r, t);
        std::vector<std::byte> own;
        r.run.save_state([&](std::span<const std::byte> piece) { own.insert(own.end(), piece.begin(), piece.end()); },
                         {.with_parameters = with_parameters, .whole_tensors = true});
        CHECK(own.empty() == (r.at.shard != 0));
        if (r.at.shard == 0) states[r.at.replica] = std::move(own);
      });
  return states;
}

/// Goes on from states of whole tensors, in other shards.
test_support::trajectory resumed(const experiment& e, const cut_model& cuts, const test_support::optimizer_maker& make,
                                 const std::vector<std::vector<std::byte>>& states, std::size_t when) {
  return train_in_shards(e, cuts, make, [&](shard_rank& r, std::size_t t) {
    if (t < when) return;
    if (t == when) r.run.load_state(states[r.at.replica], {.whole_tensors = true});
    test_support::take_step(r, t);
  });
}

/// Goes on from them without shards.
test_support::trajectory resumed_whole(const experiment& e, const test_support::optimizer_maker& make,
                                       const std::vector<std::vector<std::byte>>& states, std::size_t when) {
  test_support::trajectory reached = test_support::place_of(e);
  slamb::run_ranks(e.world, [&](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    test_support::replica mine(e.tensors, e.start);
    test_support::made_optimizer run = make_one(make, mine.parameters(), std::move(ranks));
    run.load_state(states[rank], {.from_other_ranks = true});
    for (std::size_t t = when; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(e.rates[t]);
      reached[t][rank] = mine.values();
    }
  });
  return reached;
}

double difference_from(std::size_t when, const test_support::trajectory& a, const test_support::trajectory& b) {
  return test_support::largest_difference({a.begin() + static_cast<std::ptrdiff_t>(when), a.end()},
                                          {b.begin() + static_cast<std::ptrdiff_t>(when), b.end()});
}

}  // namespace

TEST_CASE("shards: a state of whole tensors continues in other shards, and without shards, as whole tensors do") {
  const experiment e = some_experiment(840, 1);
  const cut_model three = test_support::cut_anywhere(e.tensors, shards, 841);
  const cut_model two = test_support::cut_anywhere(e.tensors, 2, 842),
                  same = test_support::cut_anywhere(e.tensors, 4, 843);
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    if (r.averages_at_first || r.exchanges_differences) continue;  // SLAMB's masks are of shards
    CAPTURE(r.name);
    const test_support::trajectory whole = test_support::train(e, r.make);
    for (const std::size_t when : {1U, 5U, 11U}) {
      CAPTURE(when);
      const auto states = whole_states(e, three, r.make, when);
      CHECK(difference_from(when, resumed(e, two, r.make, states, when), whole) <= 1e-6);
      CHECK(difference_from(when, resumed(e, same, r.make, states, when), whole) <= 1e-6);
      CHECK(difference_from(when, resumed_whole(e, r.make, states, when), whole) <= 1e-6);
    }
  }
}

TEST_CASE("shards: a state of whole tensors has that of a paused tensor, also if the first rank has none of it") {
  const experiment e = test_support::make_experiment({{300}, {200}}, 845, 1, 16);
  const cut_model cuts{cut_at({150, 300}), cut_at({0, 200})};
  constexpr std::size_t pause = 6, end = 12;
  const auto take = [&](test_support::replica& mine, test_support::made_optimizer& run,
                        const std::vector<float>& gradient, std::size_t t) {
    const float* const given = static_cast<const float*>(mine.parameters()[1].gradient.address());
    if (t == pause) run.set_gradient(1, static_cast<const float*>(nullptr));
    if (t == end) run.set_gradient(1, given);
    mine.set_gradient(gradient);
    run.step(e.rates[t]);
  };
  for (const test_support::recipe& r : every_recipe_for_shards()) {
    if (r.averages_at_first || r.exchanges_differences) continue;  // SLAMB's masks are of shards
    CAPTURE(r.name);
    std::vector<std::byte> state;
    train_in_shards(e, cuts, r.make, [&](shard_rank& rank, std::size_t t) {
      if (t > end) return;
      if (t < end) return take(rank.mine, rank.run, rank.gradient(t), t);
      rank.run.save_state(
          [&](std::span<const std::byte> piece) { state.insert(state.end(), piece.begin(), piece.end()); },
          {.with_parameters = true, .whole_tensors = true});
    });
    const auto last_parameters = [&](bool resumes) {
      test_support::replica mine(e.tensors, e.start);
      test_support::made_optimizer run =
          r.make(mine.parameters(), slamb::any_communicator<>(slamb::self_communicator()), test_support::one_thread());
      if (resumes) run.load_state(state, {.from_other_ranks = true});
      for (std::size_t t = resumes ? end : 0; t < e.steps(); ++t) take(mine, run, e.gradients[t][0], t);
      return mine.values();
    };
    CHECK(test_support::max_relative_error(last_parameters(true), last_parameters(false)) <= 1e-6);
  }
}

TEST_CASE("shards: a state of whole tensors of SLAMB, and of two replicas, continues in other shards") {
  const experiment e = some_experiment(850, 2);
  const cut_model three = test_support::cut_anywhere(e.tensors, shards, 851);
  const cut_model two = test_support::cut_anywhere(e.tensors, 2, 852);
  const auto make = test_support::maker_of<slamb::slamb<slamb::no_compressor>>({.local_steps = 3});
  const auto adamw = test_support::maker_of<slamb::adamw<>>({});
  const auto warm_up = test_support::maker_of<slamb::one_bit_lamb<>>({.warm_up = {100}});
  for (const auto& recipe : {make, adamw, warm_up}) {
    const test_support::trajectory whole = test_support::train(e, recipe);
    for (const std::size_t when : {2U, 7U}) {
      const auto states = whole_states(e, three, recipe, when);
      CHECK(difference_from(when, resumed(e, two, recipe, states, when), whole) <= 1e-6);
      CHECK(difference_from(when, resumed_whole(e, recipe, states, when), whole) <= 1e-6);
    }
  }
}

TEST_CASE("shards: a state of whole tensors is that of AdamW without shards, and does not depend on the shards") {
  const experiment e = some_experiment(860, 1);
  const auto make = test_support::maker_of<slamb::adamw<>>({});
  const auto three = whole_states(e, test_support::cut_anywhere(e.tensors, 3, 861), make, 5);
  const auto two = whole_states(e, test_support::cut_anywhere(e.tensors, 2, 862), make, 5);
  CHECK(three[0].size() == two[0].size());
  const auto lost = [&](const std::vector<std::byte>& state) {
    return said_by<std::invalid_argument>([&] { resumed_whole(e, make, {state}, 5); });
  };
  CHECK(lost(two[0]) == "nothing was thrown");
  std::vector<std::byte> shorter = two[0];
  shorter.resize(shorter.size() - 8);
  CHECK(contains(lost(shorter), "slamb: "));
}

TEST_CASE("shards: a state of whole tensors must be asked for, and a state of a shard is none") {
  CHECK(contains(refusal(3, 0, state_of(1, 0)), "restore_options{.whole_tensors = true}"));
  CHECK(contains(refusal(3, 1, state_of(3, 1), {.whole_tensors = true}), "save_options{.whole_tensors = true}"));
  const experiment e = test_support::make_experiment({{24}, {33, 1}}, 810, 1, 3);
  const cut_model cuts{cut_at({12, 24}), test_support::replicated(33, 2)};
  const auto states = whole_states(e, cuts, test_support::maker_of<slamb::lamb<>>({}), 2);
  CHECK(contains(refusal(3, 1, states[0], {.whole_tensors = true}), "slamb: "));  // tensors of another size
  CHECK(refusal(2, 1, states[0], {.whole_tensors = true}) == "nothing was thrown");
}

// ---------------------------------------------------------------------------- whole tensors: groups, files, empty shards

namespace {

using test_support::shard_place;
using test_support::shards_of_threads;
using test_support::thread_shards;

constexpr int groups = 2;
constexpr slamb::save_options whole_with_parameters{.with_parameters = true, .whole_tensors = true};

std::size_t number_in_groups_of_two(shard_place at) { return 2 * at.replica + at.shard; }

slamb::byte_sink appending(std::vector<std::byte>& all) {
  return [&all](std::span<const std::byte> piece) { all.insert(all.end(), piece.begin(), piece.end()); };
}

/// A rank with 1000 elements, after a step.
struct adamw_rank {
  explicit adamw_rank(shards_of_threads ranks, const slamb::host_backend& backend = test_support::one_thread())
      : values(1000, 1.0F),
        gradient(1000, 0.1F),
        its{.data = values.data(), .gradient = gradient.data(), .size = 1000},
        run({&its, 1}, {}, std::move(ranks), backend) {
    run.step(0.01);
  }
  std::vector<float> values, gradient;
  slamb::parameter its;
  slamb::adamw<> run;
};

}  // namespace

TEST_CASE("shards: one group saves a state of whole tensors while another takes its next step") {
  thread_shards(2, groups).run([](shards_of_threads ranks, shard_place at) {
    adamw_rank rank(std::move(ranks));
    std::vector<std::byte> own;
    if (at.replica == 0) rank.run.save_state(appending(own), whole_with_parameters);
    rank.run.step(0.01);
    CHECK(rank.run.statistics().step == 2);
    CHECK(own.empty() == (at.replica != 0 || at.shard != 0));
  });
}

TEST_CASE("shards: missing memory for a state of whole tensors is reported in the group, and training continues") {
  std::vector<std::string> said(2 * groups);
  thread_shards(2, groups).run([&said](shards_of_threads ranks, shard_place at) {
    bool is_empty = false;
    adamw_rank rank(std::move(ranks), test_support::backend_that_can_be_empty(is_empty));
    is_empty = at.replica == 1 && at.shard == 1;
    std::vector<std::byte> own;
    if (at.replica == 1)
      said[number_in_groups_of_two(at)] =
          said_by<std::exception>([&] { rank.run.save_state(appending(own), whole_with_parameters); });
    is_empty = false;
    CHECK(own.empty());
    rank.run.step(0.01);
    CHECK(rank.run.statistics().step == 2);
  });
  CHECK(
      said[2] ==
      "slamb: save_state() did not begin: rank 1, shard 1 could not allocate memory for it; nothing has changed on any "
      "rank");
  CHECK(contains(said[3], " bytes could not be allocated: "));
}

TEST_CASE("shards: the first rank alone writes a file of whole tensors, if all ranks are given one path") {
  const test_support::temporary_folder folder;
  const std::string path = folder.path() / "whole.slamb";
  test_support::write_file(path, std::span("old", 3));
  std::vector<std::byte> state;
  thread_shards(2, 1).run([&](shards_of_threads ranks, shard_place at) {
    adamw_rank rank(std::move(ranks));
    std::vector<std::byte> own;
    rank.run.save_state(appending(own), whole_with_parameters);
    if (at.shard == 0) state = own;
    for (int i = 0; i < 20; ++i) {
      slamb::save_checkpoint(rank.run, path, whole_with_parameters);
      rank.run.compare_ranks();  // all have saved
      const bool is_whole = test_support::read_file(path) == state;
      CHECK(is_whole);
      CHECK(test_support::names_in(folder.path()) == std::vector<std::string>{"whole.slamb"});
      rank.run.compare_ranks();
    }
    const std::vector<float> saved = rank.values;
    rank.run.step(0.01);
    slamb::load_checkpoint(rank.run, path, {.whole_tensors = true});
    CHECK(rank.values == saved);
  });
}

TEST_CASE("shards: a file that the first rank cannot write is its error alone, and nobody waits") {
  const test_support::temporary_folder folder;
  const std::string missing = folder.path() / "missing" / "whole.slamb";
  const std::string path = folder.path() / "whole.slamb";
  for (const std::size_t without : {0U, 1U}) {  // the rank that has no folder
    std::vector<std::string> said(2);
    thread_shards(2, 1).run([&](shards_of_threads ranks, shard_place at) {
      adamw_rank rank(std::move(ranks));
      said[at.shard] = said_by<slamb::file_error>(
          [&] { slamb::save_checkpoint(rank.run, at.shard == without ? missing : path, whole_with_parameters); });
      rank.run.step(0.01);
      CHECK(rank.run.statistics().step == 2);
    });
    CHECK(said[1] == "nothing was thrown");
    if (without == 0)
      CHECK(said[0] == "slamb: save_checkpoint() cannot write " + missing + ": No such file or directory");
    else
      CHECK(said[0] == "nothing was thrown");
    CHECK(test_support::names_in(folder.path()).size() == without);
  }
}

namespace {

using mixed = slamb::precision::mixed<>;

/// The tensors of a rank: their parameters have 16 bits.
struct held_tensor {
  std::size_t size = 10;
  slamb::parameter::data_pointer empty{};  ///< `data`, if the size is 0
  bool has_master = false;
};

struct mixed_rank {
  template <class Communicator>
  mixed_rank(const held_tensor& t, Communicator ranks)
      : values(t.size, slamb::bfloat16{0x3F80}),
        gradient(t.size, 0.1F),
        master(t.size, 1.0F),
        its{.data = t.size > 0 ? slamb::parameter::data_pointer(values.data()) : t.empty,
            .gradient = t.size > 0 ? gradient.data() : nullptr,
            .size = t.size,
            .master = t.has_master && t.size > 0 ? master.data() : nullptr},
        run({&its, 1}, {}, std::move(ranks), mixed{test_support::one_thread()}) {
    run.step(0.01);
  }
  std::vector<slamb::bfloat16> values;
  std::vector<float> gradient, master;
  slamb::parameter its;
  slamb::lamb<mixed> run;
};

/// The states of whole tensors of two groups, without parameters and with them, in turn. All ranks also load them.
std::vector<std::vector<std::byte>> states_of(const std::vector<held_tensor>& tensors) {
  std::vector<std::vector<std::byte>> all;
  for (const bool with_parameters : {false, true}) {
    std::vector<std::byte> state;
    thread_shards(2, groups).run([&](shards_of_threads ranks, shard_place at) {
      mixed_rank rank(tensors[at.shard], std::move(ranks));
      std::vector<std::byte> own;
      rank.run.save_state(appending(own), {.with_parameters = with_parameters, .whole_tensors = true});
      if (at.replica == 0 && at.shard == 0) state = own;
      rank.run.compare_ranks();
      const std::vector<float> saved = rank.master;
      rank.run.step(0.01);
      rank.run.load_state(state, {.from_other_ranks = true, .parameters = with_parameters, .whole_tensors = true});
      if (with_parameters && rank.its.master != nullptr) CHECK(rank.master == saved);
      rank.run.step(0.01);
      CHECK(rank.run.statistics().step == 2);
      rank.run.set_parameters(std::vector<slamb::parameter::data_pointer>{rank.its.data});
    });
    all.push_back(state);
  }
  return all;
}

/// Those of an optimizer without shards.
std::vector<std::vector<std::byte>> states_of_one(const held_tensor& tensor) {
  slamb::thread_group one(1);
  mixed_rank rank(tensor, one.communicator(0));
  std::vector<std::vector<std::byte>> all(2);
  rank.run.save_state(appending(all[0]), {.with_parameters = false});
  rank.run.save_state(appending(all[1]), {.with_parameters = true});
  return all;
}

/// The errors of construction and of a step on the ranks of two groups; tensors are [groups · 2].
std::vector<std::string> refusals(const std::vector<held_tensor>& tensors) {
  std::vector<std::string> said(2 * groups);
  thread_shards(2, groups).run([&](shards_of_threads ranks, shard_place at) {
    const std::size_t i = number_in_groups_of_two(at);
    said[i] = said_by<slamb::rank_mismatch_error>([&] { mixed_rank(tensors[i], std::move(ranks)); });
  });
  return said;
}

}  // namespace

TEST_CASE("shards: the type of an empty shard of 16 bits is that of the other shards, in comparisons and in states") {
  for (const bool has_master : {false, true}) {
    CAPTURE(has_master);
    const held_tensor held{.size = 10, .has_master = has_master};
    const held_tensor typed{.size = 0, .empty = {nullptr, slamb::parameter::bfloat16}};
    const auto without_shards = states_of_one(held), first = states_of({held, typed}), last = states_of({typed, held});
    for (const std::size_t i : {0U, 1U}) {
      CHECK(first[i].size() == without_shards[i].size());
      CHECK(last[i].size() == without_shards[i].size());
    }
    for (const held_tensor& other :
         {held_tensor{.size = 0}, held_tensor{.size = 0, .empty = {nullptr, slamb::parameter::float16}}}) {
      CHECK(states_of({held, other}) == first);
      CHECK(states_of({other, held}) == last);
    }
  }
}

TEST_CASE("shards: ranks with elements of a tensor must agree on master copies") {
  const held_tensor with{.size = 10, .has_master = true}, without{.size = 10}, empty{.size = 0};
  for (const std::string& said : refusals({with, without, with, without}))
    CHECK(
        said ==
        "slamb: ranks differ in whether tensor 0 has a parameter::master: 1 on rank 0, shard 0, 0 on rank 0, shard 1; "
        "give a master copy on all ranks that have elements of the tensor, or on none");
  for (const std::string& said : refusals({empty, without, empty, with}))
    CHECK(
        contains(said, "slamb: ranks differ in whether tensor 0 has a parameter::master: 0 on rank 0, shard 0, 1 on "));
  for (const auto& tensors : std::vector<std::vector<held_tensor>>{
           {with, with, with, with}, {without, empty, without, empty}, {empty, with, empty, with}})
    for (const std::string& said : refusals(tensors)) CHECK(said == "nothing was thrown");
}

TEST_CASE(
    "shards: groups with other parameters resume from one state of whole tensors, or synchronize before they save") {
  const auto check = [](const auto& optimizer, std::size_t steps, const auto& options) {
    using optimizer_type = typename std::remove_cvref_t<decltype(optimizer)>::type;
    for (const bool synchronizes : {false, true})
      for (const bool loads_first : {false, true}) {
        CAPTURE(synchronizes);
        CAPTURE(loads_first);
        std::vector<std::vector<std::byte>> states(groups);
        std::vector<std::string> said(2 * groups);
        std::vector<std::vector<float>> reached(2 * groups);
        for (const bool loads : {false, true})
          thread_shards(2, groups).run([&](shards_of_threads ranks, shard_place at) {
            std::vector<float> values(300, 1.0F), gradient(300);
            const slamb::parameter its{.data = values.data(), .gradient = gradient.data(), .size = values.size()};
            optimizer_type run({&its, 1}, options, std::move(ranks), test_support::one_thread());
            const auto take_steps = [&](std::size_t first) {
              for (std::size_t t = first; t < first + steps; ++t) {
                for (std::size_t i = 0; i < gradient.size(); ++i)
                  gradient[i] = 0.01F * static_cast<float>((31 * i + 7 * t + 3 * at.replica + at.shard) % 17);
                run.step(0.01);
              }
            };
            if (!loads) {
              take_steps(0);
              if (synchronizes) run.synchronize_parameters();
              std::vector<std::byte> own;
              run.save_state(appending(own), whole_with_parameters);
              if (at.shard == 0) states[at.replica] = own;
              return;
            }
            run.load_state(states[loads_first ? 0 : at.replica],
                           {.from_other_ranks = loads_first, .whole_tensors = true});
            said[number_in_groups_of_two(at)] = said_by<slamb::rank_mismatch_error>([&] {
              take_steps(steps);
              run.synchronize_parameters();
            });
            reached[number_in_groups_of_two(at)] = values;
          });
        for (const std::string& text : said)
          if (synchronizes || loads_first)
            CHECK(text == "nothing was thrown");
          else
            CHECK(contains(text, "slamb: ranks differ in the parameters of tensor 0"));
        if (synchronizes || loads_first)
          for (const std::size_t shard : {0U, 1U}) CHECK(reached[shard] == reached[2 + shard]);
      }
  };
  slamb::zero_one_adam<>::options_type early;
  early.variance_schedule.freeze_step = 2;
  early.local_schedule.scaler = 2;
  check(std::type_identity<slamb::zero_one_adam<>>{}, 10, early);
  using by_differences = slamb::slamb<slamb::sync::quantized_difference<>, slamb::rescaled_trust_ratio<>>;
  check(std::type_identity<by_differences>{}, 7, by_differences::options_type{});
}

}  // namespace properties_shards_checkpoint_tests
