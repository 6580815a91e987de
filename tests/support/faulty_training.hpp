// Trainings in which gradients overflow or communicators fail, and checks of the state that they leave.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/watching_communicators.hpp"

namespace test_support {

inline model fault_model() { return {{17}, {9000}, {0}, {33, 1}, {300}}; }

/// Makes an optimizer for one rank, on one thread.
template <class Communicator>
made_optimizer make_one(const optimizer_maker& make, replica& mine, Communicator communicator) {
  return make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), one_thread());
}

/// The number of collectives at construction, in which several ranks try the communicator and compare their arguments. A failure
/// in one of them ends the construction.
inline std::uint64_t rounds_at_construction(const optimizer_maker& make) {
  for (std::uint64_t round = 0;; ++round) {
    slamb::thread_group group(2);
    group.inject({.rank = 0, .round = round, .kind = slamb::thread_group::fault::kind_type::throws});
    std::atomic<int> made{0};
    try {
      slamb::run_ranks(group, [&](slamb::thread_communicator communicator) {
        replica mine(fault_model(), std::vector<float>(total_size(fault_model()), 1.0F));
        const made_optimizer run = make_one(make, mine, std::move(communicator));
        ++made;
      });
    } catch (const slamb::communicator_error&) {
      CHECK(made == 0);
      continue;
    }
    return round;
  }
}
template <class Optimizer>
std::uint64_t rounds_at_construction(const typename Optimizer::options_type& options = {}) {
  return rounds_at_construction(maker_of<Optimizer>(options));
}

/// As above, and the comparison before the first step.
inline std::uint64_t rounds_before_first_step(const optimizer_maker& make) { return rounds_at_construction(make) + 1; }
template <class Optimizer>
std::uint64_t rounds_before_first_step(const typename Optimizer::options_type& options = {}) {
  return rounds_before_first_step(maker_of<Optimizer>(options));
}

/// Adds an extra step before step `when` with `value` at one place of one rank's gradient. The step must be skipped, and the
/// training must go on as if there had been no such step.
inline void check_skipped(const experiment& e, const optimizer_maker& make, float value, std::size_t place,
                          std::size_t when) {
  const trajectory expected = train(e, make);
  trajectory reached(e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world)));
  std::atomic<int> wrong{0};
  slamb::run_ranks(e.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const bool culprit = communicator.rank() == communicator.size() - 1;
    replica mine(e.tensors, e.start);
    made_optimizer run = make_one(make, mine, std::move(communicator));
    for (std::size_t t = 0; t < e.steps(); ++t) {
      if (t == when) {
        std::vector<float> gradient = e.gradients[(t + 1) % e.steps()][rank];
        if (culprit) gradient[place] = value;
        mine.set_gradient(gradient);
        const std::vector<float> before = mine.values();
        const slamb::statistics::norms_type norm = run.statistics(true).norm;
        for (int again = 0; again < 2; ++again) {
          run.set_mask(e.masks[(t + 1) % e.steps()]);
          run.step(e.rates[t]);
        }
        const slamb::statistics after = run.statistics(true);
        if (!same_bits(mine.values(), before) || !mine.intact()) ++wrong;
        if (after.step != t || after.skipped_steps != 2) ++wrong;
        if (after.norm.momentum != norm.momentum || after.norm.variance != norm.variance) ++wrong;
      }
      mine.set_gradient(e.gradients[t][rank]);
      run.set_mask(e.masks[t]);
      run.step(e.rates[t]);
      reached[t][rank] = mine.values();
    }
    if (run.statistics().step != e.steps() || run.statistics().skipped_steps != 2) ++wrong;
  });
  CHECK(wrong == 0);
  CHECK(same_bits(reached, expected));
}
template <class Optimizer>
void check_skipped(const experiment& e, const typename Optimizer::options_type& options, float value, std::size_t place,
                   std::size_t when) {
  check_skipped(e, maker_of<Optimizer>(options), value, place, when);
}

inline void check_overflows(const optimizer_maker& make) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
  constexpr float square_overflows = 1e30F;
  for (const int world : {1, 2, 3}) {
    const experiment e = make_experiment(fault_model(), static_cast<std::uint64_t>(100 + world), world, 4);
    const std::size_t last = e.start.size() - 1;
    for (const float value : {not_a_number, infinity, -infinity, square_overflows, -square_overflows}) {
      CAPTURE(world);
      CAPTURE(value);
      check_skipped(e, make, value, 5000, 2);
    }
    for (const std::size_t place : {std::size_t{0}, std::size_t{16}, last}) {
      CAPTURE(world);
      CAPTURE(place);
      check_skipped(e, make, not_a_number, place, 0);
      check_skipped(e, make, square_overflows, place, 3);
    }
  }
}
template <class Optimizer>
void check_overflows(const typename Optimizer::options_type& options) {
  check_overflows(maker_of<Optimizer>(options));
}

/// The state of one rank after a step that failed.
struct failed_step {
  bool threw = false;
  std::size_t step = 0;       // index of the step that threw, from 0
  std::uint64_t counted = 0;  // statistics().step after it
  std::vector<float> values{};
};

/// Trains until a step throws slamb::communicator_error.
inline std::vector<failed_step> train_until_failure(const experiment& e, const optimizer_maker& make,
                                                    slamb::thread_group& group) {
  std::vector<failed_step> seen(static_cast<std::size_t>(e.world));
  std::atomic<bool> intact{true};
  slamb::run_ranks(group, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer run = make_one(make, mine, std::move(communicator));
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.set_mask(e.masks[t]);
      try {
        run.step(e.rates[t]);
      } catch (const slamb::communicator_error&) {
        seen[rank] = {true, t, run.statistics().step, mine.values()};
        if (!mine.intact()) intact = false;
        // A failed group stays failed: another step fails at once and changes nothing either.
        const std::vector<float> before = mine.values();
        CHECK_THROWS_AS(run.step(e.rates[t]), slamb::communicator_error);
        CHECK_THROWS_AS(run.step(e.rates[t]), slamb::communicator_error);
        CHECK(same_bits(mine.values(), before));
        return;
      }
    }
  });
  CHECK(intact);
  return seen;
}
template <class Optimizer>
std::vector<failed_step> train_until_failure(const experiment& e, const typename Optimizer::options_type& options,
                                             slamb::thread_group& group) {
  return train_until_failure(e, maker_of<Optimizer>(options), group);
}

/// True if every element of `values` is either this rank's own after the step or the mean of all ranks.
inline bool own_or_mean(const std::vector<float>& values, const std::vector<float>& own,
                        const std::vector<float>& mean) {
  if (values.size() != own.size()) return false;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != own[i] && values[i] != mean[i]) return false;
  return true;
}

/// True if `mean` is the mean of the ranks' own values, up to rounding.
inline bool have_mean(const std::vector<failed_step>& ranks, const std::vector<float>& mean) {
  std::vector<double> sum(mean.size(), 0.0);
  for (const failed_step& of_rank : ranks)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank.values[i] / static_cast<double>(ranks.size());
  return max_relative_error(mean, sum) <= 1e-6;
}

/// Fails every collective of a short training in turn, once each.
///
/// @param exchanges  collectives of all steps, without those that average parameters
inline void check_failure_at_each_round(const optimizer_maker& make, int exchanges = 3) {
  const std::uint64_t first_round = rounds_at_construction(make);
  for (const int world : {2, 3, 4}) {
    const experiment e = make_experiment(fault_model(), static_cast<std::uint64_t>(110 + world), world, 3);
    const trajectory expected = train(e, make);
    std::vector<failed_step> own;  // the ranks' parameters before the averaging of a step
    int failed_exchanges = 0;
    for (std::uint64_t round = first_round;; ++round) {
      slamb::thread_group group(world);
      const int culprit = static_cast<int>(round) % world;
      group.inject({.rank = culprit, .round = round, .kind = slamb::thread_group::fault::kind_type::throws});
      const auto seen = train_until_failure(e, make, group);
      if (!seen[0].threw) {
        for (const failed_step& of_rank : seen) CHECK_FALSE(of_rank.threw);
        break;
      }
      CAPTURE(world);
      CAPTURE(round);
      const std::size_t step = seen[0].step;
      const bool taken = seen[0].counted == step + 1;
      if (taken && (own.empty() || own[0].step != step)) {  // the first piece of an averaging
        own = seen;
        CHECK(have_mean(own, expected[step][0]));
        CHECK_FALSE(same_bits(own[0].values, own[1].values));
      }
      if (!taken) ++failed_exchanges;
      for (std::size_t rank = 0; rank < seen.size(); ++rank) {
        const failed_step& mine = seen[rank];
        CHECK(mine.threw);
        CHECK(mine.step == step);
        CHECK(mine.counted == seen[0].counted);
        if (taken) {  // the averaging failed: the step was taken, and some pieces may already be averaged
          CHECK(own_or_mean(mine.values, own[rank].values, expected[step][rank]));
        } else {  // the exchange failed: nothing changed
          CHECK(mine.counted == step);
          CHECK(same_bits(mine.values, step == 0 ? e.start : expected[step - 1][rank]));
        }
      }
    }
    CHECK(failed_exchanges == exchanges + 1);  // one more: the comparison before the first step
  }
}
template <class Optimizer>
void check_failure_at_each_round(const typename Optimizer::options_type& options, int exchanges = 3) {
  check_failure_at_each_round(maker_of<Optimizer>(options), exchanges);
}

/// Trains with a communicator that fails in the given calls. After each failure, it repeats what failed.
///
/// @param make  on ranks of any_communicator
inline trajectory train_through_failures(const experiment& e, const optimizer_maker& make,
                                         const std::set<std::uint64_t>& failing, int& failures) {
  using flaky = flaky_communicator<slamb::thread_communicator>;
  trajectory reached(e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world)));
  std::atomic<int> failed{0};
  slamb::run_ranks(e.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer run = make_one(make, mine, flaky(std::move(communicator), failing));
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.set_mask(e.masks[t]);
      const auto persevere = [&](const auto& action) {
        for (;;) {
          try {
            return action();
          } catch (const slamb::communicator_error&) {
            if (rank == 0) ++failed;
            if (run.statistics().step == t + 1) break;  // the step was taken; only its averaging failed
          }
        }
        for (;;) {
          try {
            return run.synchronize_parameters();
          } catch (const slamb::communicator_error&) {
            if (rank == 0) ++failed;
          }
        }
      };
      persevere([&] { run.step(e.rates[t]); });
      reached[t][rank] = mine.values();
    }
  });
  failures = failed;
  return reached;
}

}  // namespace test_support
