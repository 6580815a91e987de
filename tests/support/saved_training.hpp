// Trainings that are saved, interrupted and resumed. Compiled once for all optimizers.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace test_support {

/// Makes an optimizer for one rank, on one thread.
inline made_optimizer make_one(const optimizer_maker& make, std::span<const slamb::parameter> parameters,
                               slamb::thread_communicator communicator) {
  return make(parameters, slamb::any_communicator<>(std::move(communicator)), one_thread());
}

/// The data that one rank needs to resume.
struct checkpoint {
  std::vector<std::byte> state;
  std::vector<float> values;  // [n] the parameters

  friend bool operator==(const checkpoint& a, const checkpoint& b) {
    return a.state == b.state && same_bits(std::span(a.values), std::span(b.values));
  }
};
using checkpoints = std::vector<checkpoint>;  // [rank]

/// A training, or the rest of one.
struct course {
  std::vector<checkpoints> at{};                       // [steps + 1]: at the start, and after each step
  std::vector<std::vector<slamb::statistics>> said{};  // [steps + 1][rank], with norms
};

/// The start of a training.
struct beginning {
  const checkpoints* from = nullptr;  ///< [rank]; null: start new
  std::size_t first_step = 0;         ///< of the experiment
  std::size_t steps_before = 0;  ///< steps taken by the same optimizers on other gradients before the state is loaded
  slamb::restore_options options{};
};

/// Trains from `start` to the end of the experiment.
inline course train_saving(const experiment& e, const optimizer_maker& make, const beginning& start = {}) {
  const auto ranks = static_cast<std::size_t>(e.world);
  const std::size_t entries = e.steps() - start.first_step + 1;
  course all{.at = {entries, checkpoints(ranks)}, .said = {entries, std::vector<slamb::statistics>(ranks)}};
  std::atomic<bool> intact{true};
  slamb::run_ranks(e.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer run = make_one(make, mine.parameters(), std::move(communicator));
    for (std::size_t t = 0; t < start.steps_before; ++t) {
      mine.set_gradient(e.gradients[e.steps() - 1 - t][rank]);
      run.step(e.rates[t]);
    }
    if (start.from != nullptr) {
      run.load_state((*start.from)[rank].state, start.options);
      mine.set_values((*start.from)[rank].values);
    }
    const auto note = [&](std::size_t entry) {
      all.at[entry][rank] = {run.save_state(), mine.values()};
      all.said[entry][rank] = run.statistics(true);
      if (!mine.intact()) intact = false;
    };
    note(0);
    for (std::size_t t = start.first_step; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(e.rates[t]);
      note(t - start.first_step + 1);
    }
  });
  CHECK(intact);
  return all;
}

/// True if `rest` equals `whole` from step `first` on, states included.
inline bool goes_on_as(const course& whole, const course& rest, std::size_t first) {
  if (first + rest.at.size() != whole.at.size()) return false;
  for (std::size_t t = 0; t < rest.at.size(); ++t)
    if (rest.at[t] != whole.at[first + t]) return false;
  return true;
}

/// Interrupts and resumes a training after each of its steps, and before the first.
inline void check_resumes(const experiment& e, const optimizer_maker& make) {
  const course whole = train_saving(e, make);
  CHECK(goes_on_as(whole, train_saving(e, make), 0));
  for (std::size_t when = 0; when <= e.steps(); ++when) {
    CAPTURE(when);
    CHECK(goes_on_as(whole, train_saving(e, make, {.from = &whole.at[when], .first_step = when}), when));
    const beginning after_others{.from = &whole.at[when], .first_step = when, .steps_before = 1 + when % 8};
    CHECK(goes_on_as(whole, train_saving(e, make, after_others), when));
  }
}

/// A single rank whose state a test can corrupt.
class lonely_rank {
 public:
  lonely_rank(const model& tensors, const optimizer_maker& make)
      : values_(total_size(tensors), 0.5F),
        mine_(tensors, values_),
        run_(make_one(make, mine_.parameters(), one_rank())) {}

  void step(std::uint64_t t) {
    mine_.set_gradient(random_gradient(5, t, 0, values_.size()));
    const double rate = 0.01;
    run_.step(std::span(&rate, 1));
  }
  void step_with(float gradient) {
    mine_.set_gradient(std::vector<float>(values_.size(), gradient));
    const double rate = 0.01;
    run_.step(std::span(&rate, 1));
  }

  checkpoint now() const { return {run_.save_state(), mine_.values()}; }
  made_optimizer& optimizer() { return run_; }

  /// The message of `load_state` if it throws; empty if it loads the state.
  std::string load(std::span<const std::byte> saved, const slamb::restore_options& options = {}) {
    try {
      run_.load_state(saved, options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return {};
  }

  /// As load, and checks that a failed load changed nothing.
  std::string refusal(std::span<const std::byte> saved, const slamb::restore_options& options = {}) {
    const checkpoint before = now();
    std::string said = load(saved, options);
    if (!said.empty() && now() != before) return "something has changed";
    return said;
  }

 private:
  static slamb::thread_communicator one_rank() { return slamb::thread_group(1).communicator(0); }

  std::vector<float> values_;
  replica mine_;
  made_optimizer run_;
};

}  // namespace test_support
