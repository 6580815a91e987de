// Steps in shards in which a collective fails, between replicas or within a shard group: they change nothing, and can be repeated.
// Sums over shards come after the moments of LAMB have changed, and copies of tensors are made equal after the step: if these fail, a
// state must be loaded before anything else.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/every_recipe.hpp"
#include "support/skipped_training.hpp"
#include "support/thread_shards.hpp"

namespace faults_failed_shards_tests {
namespace {

using test_support::complaints;
using test_support::cut_model;
using test_support::experiment;
using test_support::failing_communicator;
using test_support::planned_failure;
using test_support::same_bits;
using test_support::shard_place;

using failing_shards = slamb::sharded_communicator<failing_communicator, failing_communicator>;

constexpr std::size_t shards = 2, steps = 8;

struct course {
  test_support::trajectory values;
  std::vector<std::vector<std::byte>> states;  // [rank]
  std::size_t failures = 0;                    // of the first rank
  std::size_t refusals = 0;                    // of them, those after which the optimizer saved no state
};

/// What save_state() throws; empty: nothing.
std::string refusal_of(const test_support::made_optimizer& run) {
  try {
    static_cast<void>(run.save_state());
  } catch (const std::logic_error& refused) {
    return refused.what();
  }
  return {};
}

/// One rank whose collectives fail as planned.
struct failing_rank {
  std::size_t number;
  shard_place at;
  const std::vector<std::size_t>& elements;  // [n]
  test_support::replica& mine;
  test_support::made_optimizer& run;
  planned_failure& failing;
};

/// Calls body(failing_rank) on each rank of two shard groups.
template <class Body>
void run_failing_ranks(const experiment& e, const cut_model& cuts, const test_support::optimizer_maker& make,
                       const Body& body) {
  test_support::thread_shards groups(shards, 2);
  slamb::run_ranks(2 * shards, [&](const slamb::thread_communicator& thread) {
    const auto number = static_cast<std::size_t>(thread.rank());
    const shard_place at{number / shards, number % shards};
    planned_failure failing;
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    test_support::replica mine(test_support::shard_of(e.tensors, cuts, at.shard),
                               test_support::taken(e.start, elements));
    failing_shards ranks(
        failing_communicator(groups.exchange(at.shard).communicator(static_cast<int>(at.replica)), failing),
        failing_communicator(groups.shard_group(at.replica).communicator(static_cast<int>(at.shard)), failing));
    test_support::made_optimizer run =
        make(mine.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread());
    body(failing_rank{number, at, elements, mine, run, failing});
  });
}

/// Trains on two shard groups. If `spoils`, each collective of each step fails in turn on all ranks, before it has sent or afterwards.
course trained(const experiment& e, const cut_model& cuts, const test_support::optimizer_maker& make, bool spoils,
               complaints& wrong) {
  test_support::sharded_trajectory reached(e, cuts);
  course all{.values = {}, .states = std::vector<std::vector<std::byte>>(2 * shards)};
  run_failing_ranks(e, cuts, make, [&](const failing_rank& r) {
    for (std::size_t t = 0; t < e.steps(); ++t) {
      r.mine.set_gradient(test_support::taken(e.gradients[t][r.at.replica], r.elements));
      bool is_taken = false;
      for (std::size_t call = 0; spoils && !is_taken; ++call) {
        const std::string where = " at step " + std::to_string(t + 1) + ", call " + std::to_string(call / 2);
        const std::vector<float> values = r.mine.values();
        const std::vector<std::byte> state = r.run.save_state();
        r.failing.plan({.number = call / 2, .has_sent = call % 2 == 1});
        try {
          r.run.step(e.rates[t]);
          is_taken = true;
        } catch (const slamb::communicator_error&) {
          const std::string refusal = refusal_of(r.run);
          if (refusal.empty()) {
            wrong.require(same_bits(r.mine.values(), values), "other parameters" + where);
          } else {
            wrong.require(refusal.find("load a state first") != std::string::npos, refusal + where);
            r.mine.set_values(values);
            r.run.load_state(state);
            if (r.number == 0) ++all.refusals;
          }
          wrong.require(r.run.save_state() == state, "another state" + where);
          if (r.number == 0) ++all.failures;
        }
        r.failing.cancel();
      }
      if (!is_taken) r.run.step(e.rates[t]);
      reached.at(t, r.at) = r.mine.values();
    }
    all.states[r.number] = r.run.save_state();
  });
  all.values = reached.whole();
  return all;
}

/// True for LAMB and 1-bit LAMB, whose moments change before the sums of a trust ratio are taken. SLAMB's change after them.
bool changes_before_sums(const test_support::recipe& r) {
  return r.name.find("lamb") != std::string::npos && r.name.find("slamb") == std::string::npos;
}

bool is_any_lamb(const test_support::recipe& r) { return r.name.find("lamb") != std::string::npos; }

/// @param last         how the last tensor, of 33 elements, is cut
/// @param is_checked   bool(recipe)
/// @param may_refuse   bool(recipe): after some failures the optimizer asks for a state; else after none
template <class Checked, class MayRefuse>
void check_recipes(const test_support::parts_of_tensor& last, const Checked& is_checked, const MayRefuse& may_refuse) {
  const experiment e = test_support::make_experiment({{17}, {700}, {0}, {33, 1}}, 650, 2, steps);
  const cut_model cuts{test_support::cut_at({10, 17}), test_support::cut_at({300, 700}), test_support::cut_at({0, 0}),
                       last};
  for (const test_support::recipe& r : test_support::every_recipe_for_shards()) {
    if (r.averages_at_first || r.exchanges_differences)
      continue;  // their step counts if only the exchange behind it fails
    if (!is_checked(r)) continue;
    CAPTURE(r.name);
    complaints wrong;
    const course twin = trained(e, cuts, r.make, false, wrong);
    const course spoilt = trained(e, cuts, r.make, true, wrong);
    CHECK(wrong.text() == "");
    CHECK(same_bits(spoilt.values, twin.values));
    CHECK(spoilt.states == twin.states);
    CHECK(spoilt.failures >= 2 * steps);
    CHECK((spoilt.refusals > 0) == may_refuse(r));
  }
}

}  // namespace

TEST_CASE("shards: a step in which any collective fails on all ranks changes nothing, and can be repeated") {
  check_recipes(
      test_support::cut_at({20, 33}), [](const auto& r) { return !is_any_lamb(r); }, [](const auto&) { return false; });
}

TEST_CASE("shards: a step in which a sum over shards fails changes nothing, or goes on only from a loaded state") {
  check_recipes(test_support::cut_at({20, 33}), is_any_lamb, changes_before_sums);
}

TEST_CASE("shards: if copies could not be made equal after a step, training goes on only from a loaded state") {
  check_recipes(
      test_support::replicated(33, shards), [](const auto&) { return true; }, [](const auto&) { return true; });
}

TEST_CASE("shards: after an exchange that has failed behind a step, ranks with copies are compared as before") {
  const experiment e = test_support::make_experiment({{17}, {700}, {33, 1}}, 660, 2, steps);
  const cut_model cuts{test_support::cut_at({10, 17}), test_support::cut_at({300, 700}),
                       test_support::replicated(33, shards)};
  const auto make =
      test_support::maker_of<slamb::slamb_by_differences<>>({.dense_below = 0, .ranks = {.compare_every = 1}});
  std::size_t taken_steps = 0, repeated = 0, loaded = 0;  // with a failure, of the first rank
  for (std::size_t failure = 0; failure < 12; ++failure) {
    CAPTURE(failure);
    complaints wrong;
    run_failing_ranks(e, cuts, make, [&](const failing_rank& r) {
      for (std::size_t t = 0; t < e.steps(); ++t) {
        r.mine.set_gradient(test_support::taken(e.gradients[t][r.at.replica], r.elements));
        const std::vector<float> values = r.mine.values();
        const std::vector<std::byte> state = r.run.save_state();
        if (t == 4) r.failing.plan({.number = failure, .has_sent = false});
        try {
          r.run.step(e.rates[t]);
        } catch (const slamb::rank_mismatch_error& error) {
          wrong.require(false, "at step " + std::to_string(t + 1) + ": " + error.what());
          throw;
        } catch (const slamb::communicator_error&) {
          r.failing.cancel();
          const bool is_usable = refusal_of(r.run).empty();
          if (!is_usable) {
            r.mine.set_values(values);
            r.run.load_state(state);
          }
          const bool is_taken = r.run.statistics().step == t + 1;
          if (r.number == 0) ++(is_taken ? taken_steps : is_usable ? repeated : loaded);
          if (!is_taken) r.run.step(e.rates[t]);
        }
        r.failing.cancel();
      }
    });
    CHECK(wrong.text() == "");
  }
  CHECK(taken_steps > 0);
  CHECK(repeated > 0);
}

}  // namespace faults_failed_shards_tests
