// Trainings with skipped steps in between, with every recipe on both backends: saved states, moved optimizers, memory, and the
// backends' results. properties/transaction.cpp shows that a skipped step changes nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/allocations.hpp"
#include "support/skipped_training.hpp"

namespace faults_skipped_steps_tests {
namespace {

using test_support::call_skipped_step;
using test_support::complaints;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::outcome;
using test_support::rank_of_run;
using test_support::run_all;
using test_support::run_maker;
using test_support::same_bits;
using test_support::skipping_model;
using test_support::skipping_recipe;
using test_support::skipping_recipes;
using test_support::without_skips;

std::string at_step(std::size_t t) { return " at step " + std::to_string(t + 1); }

void require_same(complaints& wrong, const outcome& reached, const outcome& expected) {
  for (std::size_t t = 0; t < expected.values.size(); ++t)
    for (std::size_t rank = 0; rank < expected.states.size(); ++rank)
      wrong.require(same_bits(reached.values[t][rank], expected.values[t][rank]), "other parameters" + at_step(t));
  for (std::size_t rank = 0; rank < expected.states.size(); ++rank) {
    wrong.require(without_skips(reached.states[rank]) == without_skips(expected.states[rank]), "another state");
    wrong.require(reached.said[rank].step == expected.said[rank].step, "another t");
    wrong.require(reached.said[rank].phase == expected.said[rank].phase, "another phase");
    wrong.require(reached.said[rank].warm_up.ended_after == expected.said[rank].warm_up.ended_after,
                  "another end of the warm-up");
  }
}

/// Calls check(recipe, make, e, wrong) for every recipe, backend and number of ranks.
template <class Check>
void for_all(std::uint64_t seed, std::size_t steps, const std::vector<int>& worlds, const Check& check) {
  for (const skipping_recipe& recipe : skipping_recipes())
    for (const bool emulated : {false, true})
      for (const int world : worlds) {
        const std::string where = recipe.name + (emulated ? ", emulated, " : ", host, ") + std::to_string(world);
        CAPTURE(where);
        experiment e = make_experiment(skipping_model(), seed + static_cast<std::uint64_t>(world), world, steps);
        complaints wrong;
        check(recipe, emulated ? recipe.emulated : recipe.on_host, e, wrong);
        CHECK(wrong.text() == "");
      }
}

}  // namespace

TEST_CASE("saved_state: one backend resumes from the other's in every phase, also after skipped steps") {
  for (const skipping_recipe& recipe : skipping_recipes())
    for (const int world : {1, 2}) {
      CAPTURE(recipe.name);
      CAPTURE(world);
      const experiment e = make_experiment(skipping_model(), 260, world, 10);
      complaints wrong;
      std::vector<std::vector<std::vector<std::byte>>> states(
          e.steps(), std::vector<std::vector<std::byte>>(static_cast<std::size_t>(world)));
      const outcome expected = run_all(e, recipe.on_host, wrong, [&](rank_of_run& r, std::size_t t) {
        if (t % 3 == 1 && !recipe.is_silent(t, r.e.world)) call_skipped_step(r, t, 0);
        states[t][r.rank] = r.run.save_state();
      });
      for (std::size_t when = 0; when < e.steps(); when += 2) {
        const outcome reached = run_all(e, recipe.emulated, wrong, [&](rank_of_run& r, std::size_t t) {
          if (t != when) return;
          r.run.load_state(states[t][r.rank]);
          if (t > 0) r.mine.set_values(expected.values[t - 1][r.rank]);
          r.wrong.require(r.run.save_state() == states[t][r.rank], "the state is not the same" + at_step(t));
          r.wrong.require(r.run.statistics(false).step == t, "t is not restored" + at_step(t));
          r.move_run();
        });
        for (std::size_t t = when; t < e.steps(); ++t)
          for (std::size_t rank = 0; rank < states[t].size(); ++rank)
            wrong.require(test_support::max_relative_error(reached.values[t][rank],
                                                           test_support::widened(expected.values[t][rank])) <= 1e-6,
                          "the backends differ" + at_step(t) + " from " + std::to_string(when));
      }
      CHECK(wrong.text() == "");
    }
}

TEST_CASE("optimizer: can be moved between steps, and run next to another") {
  for_all(270, 8, {2},
          [](const skipping_recipe& /*recipe*/, const run_maker& make, const experiment& e, complaints& wrong) {
            const outcome expected = run_all(e, make, wrong);
            const outcome reached = run_all(e, make, wrong, [&](rank_of_run& r, std::size_t t) {
              r.move_run();
              if (t != 4) return;
              complaints of_other;
              experiment other = make_experiment({{70}, {300}}, 271, 1, 3);
              run_all(other, make, of_other);
              r.wrong.require(of_other.text().empty(), of_other.text());
            });
            require_same(wrong, reached, expected);
          });
}

TEST_CASE("step: allocates nothing on the host, in any recipe and phase, with skipped steps in between") {
  for (const skipping_recipe& recipe : skipping_recipes())
    for (const int world : {1, 2}) {
      CAPTURE(recipe.name);
      CAPTURE(world);
      const experiment e = make_experiment(skipping_model(), 280, world, 10);
      complaints wrong;
      std::barrier together(world);
      run_all(e, recipe.on_host, wrong, {}, [&](rank_of_run& r, std::size_t t) {
        for (const bool skipped : {true, false}) {
          if (skipped && recipe.is_silent(t, r.e.world)) continue;
          r.prepare(t);
          std::vector<float> gradient = r.e.gradients[t][r.rank];
          if (skipped) gradient[5000] = std::numeric_limits<float>::infinity();
          r.mine.set_gradient(gradient);
          together.arrive_and_wait();
          const std::size_t before = test_support::allocations();
          together.arrive_and_wait();
          r.run.step(r.rate(t));
          together.arrive_and_wait();
          const std::size_t after = test_support::allocations();
          together.arrive_and_wait();
          r.wrong.require(after == before,
                          std::to_string(after - before) + " allocations" + at_step(t) + (skipped ? ", skipped" : ""));
        }
      });
      CHECK(wrong.text() == "");
    }
}

TEST_CASE("backends: reach the same parameters over 50 steps, with skipped ones in between") {
  static constexpr std::uint8_t rows[] = {1, 1, 0, 1, 0};
  constexpr std::array<std::size_t, 8> sizes{0, 1, 15, 17, 8191, 8193, 20000, 130};
  std::size_t number = 0;
  for (const skipping_recipe& recipe : skipping_recipes()) {
    test_support::random_source source(290, ++number);
    model tensors;
    for (int l = 0; l < 5; ++l) {
      tensors.push_back({sizes[source.below(sizes.size())], source.below(3) == 0 ? 1 : 2});
      tensors.back().options.compress = source.below(4) != 0;
      tensors.back().options.adapt = source.below(4) != 0;
    }
    tensors.push_back({5 * (10 + source.below(40))});
    tensors.back().options.rows = rows;
    const int world = 1 + static_cast<int>(number % 4);
    const experiment e = make_experiment(tensors, 290 + number, world, 50);
    CAPTURE(recipe.name);
    CAPTURE(world);
    complaints wrong;
    const auto skip_some = [&](rank_of_run& r, std::size_t t) {
      if (recipe.is_silent(t, world) || (t > 11 && recipe.silent_steps.size() > 0)) return;
      if ((t * 2654435761U >> 7U) % 3 == 0) call_skipped_step(r, t, t % 2);
    };
    const outcome on_host = run_all(e, recipe.on_host, wrong, skip_some);
    const outcome emulated = run_all(e, recipe.emulated, wrong, skip_some);
    CHECK(on_host.said[0].skipped_steps > 2);
    for (std::size_t rank = 0; rank < on_host.said.size(); ++rank) {
      CHECK(emulated.said[rank].step == on_host.said[rank].step);
      CHECK(emulated.said[rank].skipped_steps == on_host.said[rank].skipped_steps);
      CHECK(emulated.said[rank].phase == on_host.said[rank].phase);
    }
    double worst = 0.0;
    for (std::size_t t = 0; t < e.steps(); ++t)
      for (std::size_t rank = 0; rank < on_host.said.size(); ++rank)
        worst = std::max(worst, test_support::max_relative_error(emulated.values[t][rank],
                                                                 test_support::widened(on_host.values[t][rank])));
    CHECK(worst <= 1e-6);
    CHECK(wrong.text() == "");
  }
}

}  // namespace faults_skipped_steps_tests
