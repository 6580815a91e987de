// A step is a transaction, for every recipe on each backend: a step that is spoiled leaves parameters, state and number as they
// were, bit for bit, and the training goes on as that of a twin which has never seen the spoiled step.
//
// Steps are carried through in two cases, as documented: in a local step of 0/1 Adam only the rank whose gradient is not finite
// leaves it out; and SLAMB's step counts if only the exchange of parameters behind it fails.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/skipped_training.hpp"

namespace properties_transaction_tests {
namespace {

using test_support::complaints;
using test_support::experiment;
using test_support::failing_call;
using test_support::outcome;
using test_support::rank_of_run;
using test_support::run_all;
using test_support::run_maker;
using test_support::same_bits;
using test_support::set_overflow;
using test_support::skipping_recipe;
using test_support::without_skips;
using fault_kind = slamb::thread_group::fault::kind_type;

// -------------------------------------------------------------------------------------------------- recipes and backends

/// Recipes on both backends, and all others on the host.
std::vector<skipping_recipe> every_row() {
  std::vector<skipping_recipe> rows = test_support::skipping_recipes();
  for (test_support::recipe& r : test_support::every_recipe()) {
    skipping_recipe row;
    row.name = "every_recipe: " + r.name;
    row.averages = r.averages_at_first;
    row.exchanges_differences = r.exchanges_differences;
    row.keeps_part = r.keeps_part;
    row.on_host = [make = std::move(r.make)](std::span<const slamb::parameter> parameters,
                                             test_support::failing_communicator communicator) {
      return make(parameters, slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
    };
    for (std::size_t t = 0; t < r.rounds.size(); ++t)
      if (r.rounds[t] == 0) row.silent_steps.push_back(t);
    rows.push_back(std::move(row));
  }
  return rows;
}

template <class Check>
void on_each_backend(const skipping_recipe& row, const Check& check) {
  check("host", row.on_host);
  if (row.emulated) check("emulated", row.emulated);
}

/// Calls check(row, make, e, wrong) for every recipe, backend and number of ranks.
template <class Check>
void for_all(std::uint64_t seed, std::size_t steps, const std::vector<int>& worlds, const Check& check) {
  for (const skipping_recipe& row : every_row())
    on_each_backend(row, [&](const std::string& backend, const run_maker& make) {
      for (const int world : worlds) {
        const std::string where = row.name + ", " + backend + ", " + std::to_string(world);
        CAPTURE(where);
        const experiment e = test_support::make_experiment(test_support::skipping_model(),
                                                           seed + static_cast<std::uint64_t>(world), world, steps);
        complaints wrong;
        check(row, make, e, wrong);
        CHECK(wrong.text() == "");
      }
    });
}

// ------------------------------------------------------------------------------------------------------------ spoilt steps

enum class ending : std::uint8_t { taken, skipped, failed, rejected };

std::string at_step(std::size_t t) { return " at step " + std::to_string(t + 1); }

std::size_t ranks_of(const rank_of_run& r) { return static_cast<std::size_t>(r.e.world); }

void take_step(rank_of_run& r, double rate) { r.run.step(rate); }
/// Gradients become ready in another order on each rank, and some only in finish_step().
void take_in_parts(rank_of_run& r, double rate) {
  r.run.begin_step(rate);
  const std::size_t tensors = r.e.tensors.size();
  for (std::size_t i = r.rank % 2; i < tensors; ++i) r.run.gradient_ready(tensors - 1 - (i + r.rank) % tensors, 1);
  r.run.finish_step();
}

using way_of_step = void (*)(rank_of_run& r, double rate);

/// Something that spoils a step: makes call number `number` at step t, and returns how it has ended. A call that was `taken` is
/// the step itself, of which nothing was spoilt.
struct spoiler {
  ending (*call)(rank_of_run& r, std::size_t t, std::size_t number, way_of_step take);
  way_of_step take = take_step;
  std::size_t calls = 2;   ///< at most, before each step
  bool in_silence = true;  ///< also spoils steps without a collective
};

ending overflow(rank_of_run& r, std::size_t t, std::size_t number, way_of_step take) {
  const std::uint64_t skipped = r.run.statistics(false).skipped_steps;
  set_overflow(r, t, number);
  take(r, 2.0 * r.rate(t));
  return r.run.statistics(false).skipped_steps == skipped ? ending::taken : ending::skipped;
}

/// The last rank has another learning rate. A device skips all steps until the host asks it.
double other_rate(const rank_of_run& r, std::size_t t) {
  return r.rank + 1 == ranks_of(r) ? 2.0 * r.rate(t) : r.rate(t);
}
ending other_rates(rank_of_run& r, std::size_t t, std::size_t /*number*/, way_of_step take) {
  r.prepare(t);
  try {
    take(r, other_rate(r, t));
    r.run.compare_ranks();
  } catch (const slamb::rank_mismatch_error&) {
    return ending::rejected;
  }
  return ending::taken;
}
/// All ranks know of an overflow, so it comes first; but ranks compare the rates before the first step.
ending overflow_with_other_rates(rank_of_run& r, std::size_t t, std::size_t number, way_of_step take) {
  const std::uint64_t skipped = r.run.statistics(false).skipped_steps;
  set_overflow(r, t, number);
  try {
    take(r, other_rate(r, t));
  } catch (const slamb::rank_mismatch_error&) {
    r.wrong.require(t == 0, "rejected" + at_step(t));
    return ending::rejected;
  }
  return r.run.statistics(false).skipped_steps == skipped ? ending::taken : ending::skipped;
}

/// Each collective of a step fails in turn on all ranks, before it has sent or afterwards, and works again.
ending failing_collective(rank_of_run& r, std::size_t t, std::size_t number, way_of_step take) {
  r.prepare(t);
  r.failing.plan({.number = number / 2, .has_sent = number % 2 == 1});
  ending how = ending::taken;
  try {
    take(r, r.rate(t));
  } catch (const slamb::communicator_error&) {
    how = ending::failed;
  }
  r.failing.cancel();
  return how;
}
constexpr std::size_t each_collective = 100, some_collectives = 4;

/// A collective fails in a step with an overflow, in another order before each step, so that the last one may be any of them. A
/// device makes also the collectives behind a step that it has skipped.
ending failing_overflow(rank_of_run& r, std::size_t t, std::size_t number, way_of_step take) {
  const std::uint64_t skipped = r.run.statistics(false).skipped_steps;
  r.failing.plan({.number = (t + some_collectives - 1 - number) % some_collectives});
  try {
    overflow(r, t, number, take);
  } catch (const slamb::communicator_error&) {
  }
  r.failing.cancel();
  return r.run.statistics(false).skipped_steps == skipped ? ending::failed : ending::skipped;
}

// -------------------------------------------------------------------------------------------------------------- the property

/// The first step of SLAMB by differences sets its anchor to the parameters, which are equal on all ranks, as it begins; and that of a
/// partition the exact parameters.
bool sets_anchor(const skipping_recipe& row, std::size_t t) {
  return (row.exchanges_differences || row.keeps_part) && t == 0;
}

/// All that a spoilt step may not change on a rank.
struct snapshot {
  std::vector<float> values;
  std::vector<std::byte> state;
  slamb::statistics said;

  explicit snapshot(const rank_of_run& r)
      : values(r.mine.values()), state(r.run.save_state()), said(r.run.statistics(true)) {}

  /// @param sets_anchor  the step has also set the state's anchor, to the parameters
  void require_same(rank_of_run& r, ending how, const std::string& where, bool sets_anchor) const {
    const snapshot now(r);
    const auto& norm = said.norm;
    r.wrong.require(same_bits(now.values, values), "other parameters" + where);
    r.wrong.require(
        sets_anchor || (how == ending::skipped ? without_skips(now.state) == without_skips(state) : now.state == state),
        "another state" + where);
    r.wrong.require(now.said.step == said.step, "the step counts" + where);
    r.wrong.require(now.said.skipped_steps == said.skipped_steps + (how == ending::skipped ? 1 : 0),
                    "another count of skipped steps" + where);
    r.wrong.require(now.said.local_skips == said.local_skips, "a local skip" + where);
    r.wrong.require(now.said.norm.parameters == norm.parameters && now.said.norm.momentum == norm.momentum &&
                        now.said.norm.variance == norm.variance,
                    "other norms" + where);
    r.wrong.require(now.said.phase == said.phase, "another phase" + where);
    r.wrong.require(!now.said.has_diverged, "ranks have diverged" + where);
  }
};

/// Only the exchange of parameters behind the step has failed, so the step was taken. Returns false if it must be repeated.
bool carry_through(rank_of_run& r, const skipping_recipe& row, const snapshot& before, const std::string& where) {
  r.wrong.require(row.averages || row.exchanges_differences, "a step that failed counts" + where);
  if (row.averages) {
    r.run.synchronize_parameters();
    return true;
  }
  r.run.load_state(before.state);  // an average is not the exchange of the twin
  r.mine.set_values(before.values);
  return false;
}

/// Spoils step t, as often as asked, and takes it.
void take_through(const spoiler& spoils, const skipping_recipe& row, rank_of_run& r, std::size_t t) {
  const bool is_silent = row.is_silent(t, r.e.world);
  for (std::size_t number = 0; number < spoils.calls && (!is_silent || spoils.in_silence); ++number) {
    if (row.keeps_part && number > 0 && spoils.calls == each_collective) break;  // as below
    const std::string where = at_step(t) + ", call " + std::to_string(number);
    const snapshot before(r);
    const ending how = spoils.call(r, t, number, spoils.take);
    if (how == ending::taken) {
      r.wrong.require(number >= 2 || is_silent, "nothing was spoilt" + where);
      return;
    }
    if (how == ending::failed && r.run.statistics(false).step == t + 1) {
      if (carry_through(r, row, before, where)) return;
      continue;
    }
    before.require_same(r, how, where, sets_anchor(row, t));
  }
  r.prepare(t);
  take_step(r, r.rate(t));
}

void require_same(complaints& wrong, const outcome& reached, const outcome& twin) {
  for (std::size_t t = 0; t < twin.values.size(); ++t)
    for (std::size_t rank = 0; rank < twin.states.size(); ++rank)
      wrong.require(same_bits(reached.values[t][rank], twin.values[t][rank]),
                    "other parameters than the twin's" + at_step(t));
  for (std::size_t rank = 0; rank < twin.states.size(); ++rank) {
    const slamb::statistics &said = reached.said[rank], &expected = twin.said[rank];
    wrong.require(without_skips(reached.states[rank]) == without_skips(twin.states[rank]),
                  "another state than the twin's");
    wrong.require(said.step == expected.step, "another t");
    wrong.require(said.phase == expected.phase, "another phase");
    wrong.require(said.warm_up.ended_after == expected.warm_up.ended_after, "another end of the warm-up");
  }
}

/// Every step of a training is spoilt.
void check_spoilt(const spoiler& spoils, std::uint64_t seed, std::size_t steps, const std::vector<int>& worlds) {
  for_all(seed, steps, worlds,
          [&spoils](const skipping_recipe& row, const run_maker& make, const experiment& e, complaints& wrong) {
            const outcome twin = run_all(e, make, wrong);
            const outcome reached =
                run_all(e, make, wrong, {}, [&](rank_of_run& r, std::size_t t) { take_through(spoils, row, r, t); });
            require_same(wrong, reached, twin);
          });
}

}  // namespace

TEST_CASE("transaction: a step with a gradient that is not finite on one rank changes nothing") {
  check_spoilt({.call = overflow, .in_silence = false}, 200, 10, {1, 2, 3});
}

TEST_CASE("transaction: a step in parts with a gradient that is not finite on one rank changes nothing") {
  check_spoilt({.call = overflow, .take = take_in_parts, .calls = 1, .in_silence = false}, 205, 8, {1, 2});
}

TEST_CASE("transaction: a step in which any collective fails on all ranks changes nothing") {
  check_spoilt({.call = failing_collective, .calls = each_collective}, 210, 7, {2, 3});
}

TEST_CASE("transaction: a step in parts in which any collective fails on all ranks changes nothing") {
  check_spoilt({.call = failing_collective, .take = take_in_parts, .calls = each_collective}, 215, 6, {2});
}

TEST_CASE("transaction: a step with a gradient that is not finite in which a collective also fails changes nothing") {
  check_spoilt({.call = failing_overflow, .calls = some_collectives, .in_silence = false}, 220, 6, {2});
}

TEST_CASE("transaction: a step with another learning rate on one rank changes nothing") {
  check_spoilt({.call = other_rates, .calls = 1, .in_silence = false}, 225, 8, {3});
}

TEST_CASE("transaction: a step with another learning rate on one rank is skipped if a gradient is not finite") {
  check_spoilt({.call = overflow_with_other_rates, .calls = 1, .in_silence = false}, 230, 8, {3});
}

TEST_CASE("transaction: spoilt steps need no query in between, and averagings between them change nothing") {
  for_all(235, 10, {2, 4},
          [](const skipping_recipe& row, const run_maker& make, const experiment& e, complaints& wrong) {
            const auto average = [](rank_of_run& r, std::size_t t) {
              if (t % 5 == 0) r.run.synchronize_parameters();
            };
            const outcome twin = run_all(e, make, wrong, average);
            const outcome reached = run_all(e, make, wrong, [&](rank_of_run& r, std::size_t t) {
              if (!row.is_silent(t, r.e.world))
                for (std::size_t number = 0; number < (t * 7 + 3) % 4; ++number)
                  test_support::call_skipped_step(r, t, number);
              average(r, t);
            });
            require_same(wrong, reached, twin);
          });
}

TEST_CASE("transaction: a requested measurement is taken in the next step that is not skipped") {
  for_all(
      240, 6, {1, 2}, [](const skipping_recipe& row, const run_maker& make, const experiment& e, complaints& wrong) {
        const auto measured = [&](bool skips) {
          return run_all(e, make, wrong, [&](rank_of_run& r, std::size_t t) {
            if (t == 5) r.run.measure_next_step();
            if (t == 5 && skips && !row.is_silent(t, r.e.world)) {
              r.wrong.require(overflow(r, t, 0, take_step) == ending::skipped, "the step was not skipped");
              r.wrong.require(r.run.statistics(false).compression.empty(), "a skipped step was measured");
            }
          });
        };
        const outcome twin = measured(false), reached = measured(true);
        require_same(wrong, reached, twin);
        for (std::size_t rank = 0; rank < reached.said.size(); ++rank)
          wrong.require(std::ranges::equal(
                            reached.said[rank].compression, twin.said[rank].compression,
                            [](const auto& x, const auto& y) { return x.signal == y.signal && x.error == y.error; }),
                        "something else was measured");
      });
}

TEST_CASE("transaction: in a local step of 0/1 Adam only the rank with the gradient that is not finite leaves it out") {
  for (const skipping_recipe& row : every_row()) {
    if (row.silent_steps.empty()) continue;
    on_each_backend(row, [&row](const std::string& backend, const run_maker& make) {
      CAPTURE(row.name);
      CAPTURE(backend);
      constexpr std::size_t spoilt_rank = 1;
      const experiment e = test_support::make_experiment(test_support::skipping_model(), 245, 3, 13);
      complaints wrong;
      const outcome twin = run_all(e, make, wrong);
      const outcome reached = run_all(e, make, wrong, {}, [&row](rank_of_run& r, std::size_t t) {
        const snapshot before(r);
        const bool is_spoilt = row.is_silent(t, r.e.world) && r.rank == spoilt_rank;
        std::vector<float> gradient = r.e.gradients[t][r.rank];
        if (is_spoilt) gradient[5000] = std::numeric_limits<float>::quiet_NaN();
        r.mine.set_gradient(gradient);
        take_step(r, r.rate(t));
        const snapshot after(r);
        r.wrong.require(after.said.step == t + 1, "the step does not count" + at_step(t));
        r.wrong.require(after.said.local_skips == before.said.local_skips + (is_spoilt ? 1 : 0),
                        "another count of local skips" + at_step(t));
        if (!is_spoilt) return;
        r.wrong.require(same_bits(after.values, before.values), "the rank has moved" + at_step(t));
        r.wrong.require(after.said.norm.momentum == before.said.norm.momentum, "its momentum has" + at_step(t));
      });
      bool was_spoilt = false;  // and not yet exchanged
      for (std::size_t t = 0; t < e.steps(); ++t) {
        const bool is_local = row.is_silent(t, e.world);
        if (t > 0 && !is_local && was_spoilt) {  // the exchange: equal again, but not the twin's parameters
          for (std::size_t rank = 0; rank < 3; ++rank) CHECK(same_bits(reached.values[t][rank], reached.values[t][0]));
          CHECK_FALSE(same_bits(reached.values[t][0], twin.values[t][0]));
          break;
        }
        was_spoilt = was_spoilt || is_local;
        for (std::size_t rank = 0; rank < 3; ++rank)
          CHECK(same_bits(reached.values[t][rank], twin.values[t][rank]) == (rank != spoilt_rank || !was_spoilt));
      }
      CHECK(was_spoilt);
      for (const slamb::statistics& said : reached.said) CHECK(said.skipped_steps == 0);
      CHECK(wrong.text() == "");
    });
  }
}

// --------------------------------------------------------------------------------------------------------- lasting failures

namespace {

/// What a failure that lasts has left on each rank.
struct failed_run {
  outcome left;
  std::vector<std::uint8_t> has_thrown;  // [rank]
};

/// Trains up to step t, in which `spoil` makes a group fail for good, and checks what it leaves.
template <class Spoil>
void fail_at(failed_run& all, const skipping_recipe& row, const run_maker& make, experiment e, std::size_t t,
             complaints& wrong, const Spoil& spoil, const slamb::thread_options& threads = {}) {
  e.gradients.resize(t + 1);
  all.has_thrown.assign(static_cast<std::size_t>(e.world), 0);
  all.left = run_all(
      e, make, wrong, {},
      [&](rank_of_run& r, std::size_t now) {
        if (now < t) return r.run.step(r.rate(now));
        const snapshot before(r);
        spoil(r);
        if (r.has_left) return;
        try {
          return r.run.step(r.rate(t));
        } catch (const slamb::communicator_error&) {
          all.has_thrown[r.rank] = 1;
        }
        if (r.run.statistics(false).step == t)
          before.require_same(r, ending::failed, at_step(t), sets_anchor(row, t));
        else
          r.wrong.require(row.averages || row.exchanges_differences, "a step that failed counts" + at_step(t));
        const snapshot left(r);
        for (int again = 0; again < 2; ++again) {  // a failed group stays failed
          try {
            r.run.step(r.rate(t));
            r.wrong.require(false, "a step in a failed group was taken" + at_step(t));
          } catch (const slamb::communicator_error&) {
          }
          left.require_same(r, ending::failed, at_step(t) + ", again", false);
        }
      },
      threads);
}

/// The ranks' parameters before an exchange of parameters that has failed: each element is the rank's own, or the result.
void require_own_or_result(complaints& wrong, const outcome& left, const outcome& own, const outcome& twin,
                           std::size_t t, bool is_mean) {
  const auto ranks = own.states.size();
  std::vector<double> mean(own.values[t][0].size(), 0.0);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const float mine = left.values[t][rank][i];
      wrong.require(mine == own.values[t][rank][i] || mine == twin.values[t][rank][i],
                    "neither a rank's own parameter nor the result" + at_step(t));
      mean[i] += static_cast<double>(own.values[t][rank][i]) / static_cast<double>(ranks);
    }
  if (is_mean)
    wrong.require(test_support::max_relative_error(twin.values[t][0], mean) <= 1e-6,
                  "the ranks' own parameters have another mean" + at_step(t));
}

/// In a new group, the training goes on from the states and parameters that the failed one has left after t steps.
void require_resumed(const run_maker& make, const experiment& e, std::size_t t, const outcome& left,
                     const outcome& twin, complaints& wrong) {
  const outcome reached = run_all(e, make, wrong, {}, [&](rank_of_run& r, std::size_t now) {
    if (now < t) return;
    if (now == t) {
      r.run.load_state(left.states[r.rank]);
      r.mine.set_values(left.values[t][r.rank]);
    }
    r.run.step(r.rate(now));
  });
  for (std::size_t now = t; now < e.steps(); ++now)
    for (std::size_t rank = 0; rank < reached.states.size(); ++rank)
      wrong.require(same_bits(reached.values[now][rank], twin.values[now][rank]),
                    "other parameters in a new group" + at_step(now) + " from" + at_step(t));
}

constexpr std::array<std::size_t, 4> failing_steps{0, 2, 3, 6};

}  // namespace

TEST_CASE("transaction: a step in which one rank fails for good changes nothing on any rank, and a new group goes on") {
  for_all(250, 10, {3}, [](const skipping_recipe& row, const run_maker& make, const experiment& e, complaints& wrong) {
    const outcome twin = run_all(e, make, wrong);
    for (const std::size_t t : failing_steps) {
      if (row.is_silent(t, e.world)) continue;
      outcome own;  // when the first part of an exchange of parameters has failed
      for (std::uint64_t number = 0;; ++number) {
        if (row.keeps_part && number > 0) break;  // tests/optimizer/partitioned_lamb_precision.cpp
        const std::size_t culprit = (t + number) % 3;
        failed_run failed;
        fail_at(failed, row, make, e, t, wrong, [&](rank_of_run& r) {
          if (r.rank == culprit)
            r.group.inject(
                {.rank = static_cast<int>(culprit), .round = r.failing.calls() + number, .kind = fault_kind::throws});
        });
        wrong.require(std::ranges::count(failed.has_thrown, failed.has_thrown[0]) == 3,
                      "not all ranks have failed" + at_step(t));
        if (failed.has_thrown[0] == 0) {
          wrong.require(number > 0, "nothing was spoilt" + at_step(t));
          break;
        }
        const bool was_taken = failed.left.said[0].step == t + 1;
        for (const slamb::statistics& said : failed.left.said)
          wrong.require(said.step == failed.left.said[0].step, "ranks differ in the number of steps" + at_step(t));
        if (number == 0) require_resumed(make, e, t, failed.left, twin, wrong);
        if (was_taken && own.states.empty()) own = failed.left;
        if (was_taken) require_own_or_result(wrong, failed.left, own, twin, t, row.averages);
      }
    }
  });
}

TEST_CASE(
    "transaction: a rank that leaves or throws between steps ends the step of the others, which changes nothing") {
  for_all(255, 6, {3}, [](const skipping_recipe& row, const run_maker& make, const experiment& e, complaints& wrong) {
    for (const std::size_t t : {std::size_t{0}, std::size_t{5}}) {
      if (row.is_silent(t, e.world)) continue;
      for (const bool throws : {false, true}) {
        const auto lose_rank_1 = [throws](rank_of_run& r) {
          r.has_left = r.rank == 1;
          if (r.has_left && throws) throw std::runtime_error("out of data");
        };
        std::string said;
        failed_run failed;
        try {
          fail_at(failed, row, make, e, t, wrong, lose_rank_1);
        } catch (const std::runtime_error& reason) {
          said = reason.what();
        }
        wrong.require(failed.has_thrown == std::vector<std::uint8_t>{1, 0, 1}, "the others go on" + at_step(t));
        wrong.require(said == (throws ? "out of data" : ""), "another error" + at_step(t));
      }
    }
  });
}

TEST_CASE("transaction: a step in which a rank stalls ends on all ranks within the timeout, and changes nothing") {
  using namespace std::chrono_literals;
  constexpr std::size_t t = 3;
  for (const skipping_recipe& row : every_row()) {
    if (row.name != "lamb" && row.name != "slamb" && row.name != "one_bit_adam" && row.name != "zero_one_adam")
      continue;
    const experiment e = test_support::make_experiment(test_support::skipping_model(), 260, 3, t + 1);
    for (std::uint64_t number = 0; number < 2; ++number) {
      CAPTURE(row.name);
      CAPTURE(number);
      complaints wrong;
      const auto begin = std::chrono::steady_clock::now();
      failed_run failed;
      fail_at(failed, row, row.on_host, e, t, wrong,
              [number](rank_of_run& r) {
                if (r.rank == 2)
                  r.group.inject({.rank = 2, .round = r.failing.calls() + number, .kind = fault_kind::stalls});
              },
              {.timeout = 3s});
      CHECK(std::chrono::steady_clock::now() - begin < 60s);
      const bool has_failed = number == 0 || row.name != "lamb";  // whose step has one collective
      CHECK(failed.has_thrown == std::vector<std::uint8_t>(3, has_failed ? 1 : 0));
      CHECK(wrong.text() == "");
    }
  }
}

}  // namespace properties_transaction_tests
