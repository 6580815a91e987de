// The intervals of 0/1 Adam compared with lists worked out by hand, and with the counts of the published schedule.
#include "slamb/schedule/intervals.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "support/described.hpp"

namespace schedule_intervals_tests {
namespace {

using slamb::doubling_local_interval;
using slamb::every;
using slamb::exponential_variance_interval;
using test_support::refusal;
using test_support::told_apart_by;

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

using steps_taken = std::vector<std::uint64_t>;

/// The τ from 2 to `last` at which the variance is refreshed.
template <class Schedule>
steps_taken refreshes(const Schedule& schedule, std::uint64_t last) {
  typename Schedule::state_type state;
  steps_taken found;
  for (std::uint64_t tau = 2; tau <= last; ++tau) {
    if (schedule.refreshes(state, tau)) found.push_back(tau);
    schedule.advance(state, tau);
  }
  return found;
}

/// The τ from `first` to `last` at which local updates are exchanged.
template <class Schedule>
steps_taken exchanges(const Schedule& schedule, std::uint64_t first, std::uint64_t last,
                      typename Schedule::state_type state = {}) {
  steps_taken found;
  for (std::uint64_t tau = first; tau <= last; ++tau) {
    if (schedule.exchanges(state, tau)) found.push_back(tau);
    schedule.advance(state);
  }
  return found;
}

struct rounds {
  std::uint64_t variance_steps = 0;
  std::uint64_t full_precision = 0;
  std::uint64_t one_bit = 0;
};

/// The exchanges of a training of `steps` steps.
template <class Variance, class Local>
rounds rounds_of(const Variance& variance, const Local& local, std::uint64_t steps) {
  typename Variance::state_type of_variance;
  typename Local::state_type of_local;
  rounds count;
  bool frozen = false;
  for (std::uint64_t t = 1; t <= steps; ++t) {
    const std::uint64_t tau = t + 1;
    if (frozen) {
      count.one_bit += local.exchanges(of_local, tau) ? 1 : 0;
      local.advance(of_local);
      continue;
    }
    ++count.variance_steps;
    ++(variance.refreshes(of_variance, tau) ? count.full_precision : count.one_bit);
    variance.advance(of_variance, tau);
    frozen = variance.ends_after(tau);
  }
  return count;
}

/// User-defined schedules without state.
struct always {
  struct state_type {};
  bool refreshes(const state_type&, std::uint64_t) const { return true; }
  void advance(state_type&, std::uint64_t) const {}
  bool ends_after(std::uint64_t) const { return false; }
};
struct every_fifth {
  struct state_type {};
  bool exchanges(const state_type&, std::uint64_t tau) const { return tau % 5 == 0; }
  void advance(state_type&) const {}
};
static_assert(slamb::variance_schedule<always> && !slamb::local_schedule<always>);
static_assert(slamb::local_schedule<every_fifth> && !slamb::variance_schedule<every_fifth>);

}  // namespace

TEST_CASE("intervals: 118,000 steps have the rounds of the published schedule") {
  const rounds published = rounds_of(exponential_variance_interval{.freeze_step = 12500, .update_scaler = 16},
                                     doubling_local_interval{.scaler = 32678, .clipper = 16}, 118000);
  CHECK(published.variance_steps == 12500);  // τ = 2 … 12,501
  CHECK(published.full_precision == 153);
  CHECK(published.one_bit == 70467);
  const rounds defaults = rounds_of(exponential_variance_interval{}, doubling_local_interval{}, 118000);
  CHECK(defaults.full_precision == published.full_precision);
  CHECK(defaults.one_bit == published.one_bit);
  CHECK(
      rounds_of(exponential_variance_interval{.update_scaler = 15}, doubling_local_interval{}, 118000).full_precision !=
      153);
  CHECK(rounds_of(exponential_variance_interval{}, doubling_local_interval{.scaler = 32768}, 118000).one_bit != 70467);
}

TEST_CASE("exponential_variance_interval: doubles after the given number of refreshes") {
  CHECK(refreshes(exponential_variance_interval{.update_scaler = 2}, 50) ==
        steps_taken{2, 3, 4, 6, 8, 12, 16, 24, 32, 48});
  CHECK(refreshes(exponential_variance_interval{.update_scaler = 1}, 100) == steps_taken{2, 4, 8, 16, 32, 64});
  CHECK(refreshes(exponential_variance_interval{.update_scaler = 3}, 30) ==
        steps_taken{2, 3, 4, 6, 8, 10, 12, 16, 20, 24});
  CHECK(refreshes(exponential_variance_interval{.update_scaler = most}, 5) == steps_taken{2, 3, 4, 5});
}

TEST_CASE("exponential_variance_interval: refreshes at the first step, with all settings") {
  for (const std::uint64_t scaler : {std::uint64_t{1}, std::uint64_t{16}, most})
    CHECK(exponential_variance_interval{.freeze_step = 0, .update_scaler = scaler}.refreshes({}, 2));
}

TEST_CASE("exponential_variance_interval: ends with the first step past the limit") {
  const exponential_variance_interval schedule{.freeze_step = 5};
  CHECK_FALSE(schedule.ends_after(5));
  CHECK(schedule.ends_after(6));
  CHECK(exponential_variance_interval{.freeze_step = 0}.ends_after(2));
  CHECK_FALSE(exponential_variance_interval{.freeze_step = most}.ends_after(most));
}

TEST_CASE("doubling_local_interval: doubles after the given number of steps, up to the largest") {
  const doubling_local_interval schedule{.scaler = 3, .clipper = 4};
  CHECK(exchanges(schedule, 6, 25) == steps_taken{6, 7, 8, 10, 12, 16, 20, 24});
  CHECK(exchanges(doubling_local_interval{.scaler = 2, .clipper = 1}, 7, 12) == steps_taken{7, 8, 9, 10, 11, 12});
  CHECK(exchanges(doubling_local_interval{.scaler = 2, .clipper = 3}, 7, 16) == steps_taken{7, 8, 10, 12, 15});
  CHECK(exchanges(doubling_local_interval{}, 7, 12) == steps_taken{7, 8, 9, 10, 11, 12});
}

TEST_CASE("doubling_local_interval: falls to a lower limit after a restart") {
  CHECK(exchanges(doubling_local_interval{.scaler = 2, .clipper = 4}, 31, 50, {.interval = 16, .steps = 0}) ==
        steps_taken{32, 36, 40, 44, 48});
}

TEST_CASE("doubling_local_interval: without a limit it never becomes 0") {
  const doubling_local_interval schedule{.scaler = 1, .clipper = most};
  doubling_local_interval::state_type state;
  std::uint64_t before = state.interval;
  for (int i = 0; i < 200; ++i) {
    schedule.advance(state);
    CHECK(state.interval >= before);
    before = state.interval;
  }
  CHECK(state.interval == most);
}

TEST_CASE("intervals: resume from a saved state") {
  const exponential_variance_interval variance{.update_scaler = 3};
  exponential_variance_interval::state_type state;
  steps_taken found;
  for (std::uint64_t tau = 2; tau <= 300; ++tau) {
    exponential_variance_interval::state_type loaded;
    std::memcpy(&loaded, &state, sizeof(state));
    state = loaded;
    if (variance.refreshes(state, tau)) found.push_back(tau);
    variance.advance(state, tau);
  }
  CHECK(found == refreshes(variance, 300));
}

TEST_CASE("every: step 1, and then at the given interval") {
  for (std::uint64_t t = 1; t < 20; ++t) {
    CHECK(every{}(t));
    CHECK(every{.steps = 3}(t) == (t == 1 || t == 4 || t == 7 || t == 10 || t == 13 || t == 16 || t == 19));
    CHECK(every{.steps = most}(t) == (t == 1));
  }
  CHECK_THROWS_AS(every{.steps = 0}(1), std::invalid_argument);
  CHECK_THROWS_AS(every{}(0), std::invalid_argument);
}

TEST_CASE("intervals: name a setting out of range") {
  CHECK(refusal(exponential_variance_interval{.update_scaler = 0}) ==
        "slamb: exponential_variance_interval's update_scaler = 0, but it must be >= 1");
  CHECK(refusal(doubling_local_interval{.scaler = 0}) ==
        "slamb: doubling_local_interval's scaler = 0, but it must be >= 1");
  CHECK(refusal(doubling_local_interval{.clipper = 0}) ==
        "slamb: doubling_local_interval's clipper = 0, but it must be >= 1");
  CHECK(refusal(every{.steps = 0}) == "slamb: every's steps = 0, but it must be >= 1");
  CHECK(refusal(exponential_variance_interval{.freeze_step = 0, .update_scaler = 1}) == "nothing was thrown");
  CHECK(refusal(doubling_local_interval{.scaler = 1, .clipper = 1}) == "nothing was thrown");
}

TEST_CASE("intervals: describe each setting") {
  using variance = exponential_variance_interval;
  using local = doubling_local_interval;
  CHECK(told_apart_by(variance{}, variance{.freeze_step = 1}) == "exponential_variance_interval's freeze_step");
  CHECK(told_apart_by(variance{}, variance{.update_scaler = 1}) == "exponential_variance_interval's update_scaler");
  CHECK(told_apart_by(local{}, local{.scaler = 1}) == "doubling_local_interval's scaler");
  CHECK(told_apart_by(local{}, local{.clipper = 1}) == "doubling_local_interval's clipper");
  CHECK(told_apart_by(every{}, every{.steps = 2}) == "every's steps");
  CHECK(told_apart_by(local{}, local{}) == "no field");
}

}  // namespace schedule_intervals_tests
