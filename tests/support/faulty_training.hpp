// Trainings in which a gradient overflows, and the number of collectives before the first step.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

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

}  // namespace test_support
