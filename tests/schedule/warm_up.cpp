// Warm-ups: the step of their end, compared with the criterion computed from the whole history of norms.
#include "slamb/schedule/warm_up.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/described.hpp"

namespace schedule_warm_up_tests {
namespace {

using slamb::automatic_warm_up;
using slamb::fixed_warm_up;
using test_support::refusal;
using test_support::told_apart_by;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

/// E[g²] at step t = 1, 2, …
using power_of_gradient = std::function<double(std::uint64_t)>;

double steady(std::uint64_t) { return 3e-5; }

power_of_gradient falling(double steps) {
  return [steps](std::uint64_t t) { return 1e-3 + std::exp(-static_cast<double>(t) / steps); };
}

/// [t] ‖v_t‖₁ of v ← β2 v + (1 − β2) g², v_0 = 0.
std::vector<double> norms(const power_of_gradient& power, double beta2, std::uint64_t steps) {
  std::vector<double> v{0.0};
  for (std::uint64_t t = 1; t <= steps; ++t) v.push_back(beta2 * v.back() + (1.0 - beta2) * power(t));
  return v;
}

/// The step after which the warm-up ends; `never` if it does not. Steps that want no norm get NaN.
template <class WarmUp>
std::uint64_t end_of(const WarmUp& schedule, const std::vector<double>& v, double beta2) {
  typename WarmUp::state_type state;
  for (std::uint64_t t = 1; t < v.size(); ++t) {
    const double norm = schedule.wants_variance_norm(t, beta2) ? v[t] : not_a_number;
    if (schedule.ends_after(state, t, norm, beta2)) return t;
  }
  return never;
}

/// As above, from the whole history: the first t > least_steps, a multiple of s, with v̂_t/v̂_{t − 16 s} ≥ threshold.
std::uint64_t end_by_hand(double threshold, std::uint64_t least_steps, std::uint64_t s, const std::vector<double>& v,
                          double beta2) {
  const auto corrected = [&](std::uint64_t t) { return v[t] / (1.0 - std::pow(beta2, static_cast<double>(t))); };
  for (std::uint64_t t = 17 * s; t < v.size(); t += s)
    if (t > least_steps && corrected(t) / corrected(t - 16 * s) >= threshold) return t;
  return never;
}

/// A user-defined schedule: ends once the norm is below a bound.
struct below_a_bound {
  struct state_type {
    double variance_ratio = 0.0;
  };
  bool wants_variance_norm(std::uint64_t, double) const { return true; }
  bool ends_after(state_type&, std::uint64_t, double norm, double) const { return norm < 0.5; }
};
static_assert(slamb::warm_up_schedule<below_a_bound>);

struct without_state {
  bool wants_variance_norm(std::uint64_t, double) const { return true; }
  bool ends_after(int&, std::uint64_t, double, double) const { return true; }
};
static_assert(!slamb::warm_up_schedule<without_state>);

}  // namespace

TEST_CASE("fixed_warm_up: ends after its steps, and needs no norm") {
  for (const std::uint64_t steps : {1U, 2U, 7U, 1000U}) {
    const fixed_warm_up schedule{.steps = steps};
    CHECK(end_of(schedule, std::vector<double>(2000, 1.0), 0.999) == steps);
    for (std::uint64_t t = 1; t < 100; ++t) CHECK_FALSE(schedule.wants_variance_norm(t, 0.999));
    fixed_warm_up::state_type state;
    CHECK(schedule.ends_after(state, steps + 5, 0.0, 0.999));  // shortened between saving and loading
  }
}

TEST_CASE("automatic_warm_up: takes a norm at every sixteenth of the interval, rounded up") {
  const auto spacing = [](std::uint64_t interval, double beta2) {
    return automatic_warm_up{.interval = interval}.spacing(beta2);
  };
  CHECK(spacing(0, 0.999) == 63);  // 1000/16 = 62.5
  CHECK(spacing(0, 0.99) == 7);    // 100/16 = 6.25
  CHECK(spacing(0, 0.9) == 1);
  CHECK(spacing(0, 0.0) == 1);
  CHECK(spacing(0, 0.9999) == 625);
  CHECK(spacing(1, 0.999) == 1);
  CHECK(spacing(16, 0.999) == 1);
  CHECK(spacing(17, 0.999) == 2);
  CHECK(spacing(never, 0.999) == never / 16 + 1);
  const automatic_warm_up schedule{.interval = 48};
  for (std::uint64_t t = 1; t < 100; ++t) CHECK(schedule.wants_variance_norm(t, 0.999) == (t % 3 == 0));
}

TEST_CASE("automatic_warm_up: ends at the first comparison if gradients are steady") {
  const std::vector<double> v = norms(steady, 0.999, 5000);
  CHECK(end_of(automatic_warm_up{}, v, 0.999) == 17 * 63);
  CHECK(end_of(automatic_warm_up{.threshold = 0.999}, v, 0.999) == 17 * 63);
  CHECK(end_of(automatic_warm_up{.interval = 10}, v, 0.999) == 17);
  CHECK(end_of(automatic_warm_up{.threshold = 1.0}, norms(steady, 0.0, 50), 0.0) == 17);  // equality is enough
}

TEST_CASE("automatic_warm_up: ends at the step computed from the full history") {
  int compared = 0;
  for (const double beta2 : {0.9, 0.99, 0.999})
    for (const double decay : {20.0, 300.0, 2000.0})
      for (const double threshold : {0.5, 0.9, 0.96, 0.99})
        for (const std::uint64_t interval : {0U, 1U, 40U, 500U})
          for (const std::uint64_t least : {0U, 100U, 1071U, 3000U}) {
            const std::vector<double> v = norms(falling(decay), beta2, 12000);
            const automatic_warm_up schedule{.threshold = threshold, .least_steps = least, .interval = interval};
            const std::uint64_t expected = end_by_hand(threshold, least, schedule.spacing(beta2), v, beta2);
            CHECK(end_of(schedule, v, beta2) == expected);
            compared += expected != never && expected > 17 * schedule.spacing(beta2) && expected > least + 500 ? 1 : 0;
          }
  CHECK(compared > 20);  // otherwise the end would follow from the settings only
  const std::vector<double> v = norms(falling(300.0), 0.999, 12000);
  CHECK(end_of(automatic_warm_up{.threshold = 0.96}, v, 0.999) != end_by_hand(0.97, 0, 63, v, 0.999));
  CHECK(end_of(automatic_warm_up{.threshold = 0.96}, v, 0.999) != end_by_hand(0.96, 0, 64, v, 0.999));
}

TEST_CASE("automatic_warm_up: the growth of v from 0 does not count as stable") {
  // A gradient that halves every 250 steps. Without bias correction v grows between the first two norms nevertheless.
  const double beta2 = 0.999;
  const std::vector<double> v =
      norms([](std::uint64_t t) { return std::exp2(-static_cast<double>(t) / 250.0); }, beta2, 4000);
  CHECK(v[17 * 63] / v[63] >= 0.96);
  CHECK(end_of(automatic_warm_up{}, v, beta2) == never);
  // At its end, the criterion for v itself holds.
  for (const double decay : {50.0, 400.0, 1500.0}) {
    const std::vector<double> w = norms(falling(decay), beta2, 30000);
    const std::uint64_t end = end_of(automatic_warm_up{}, w, beta2);
    REQUIRE(end != never);
    CHECK(w[end] / w[end - 16 * 63] >= 0.96);
  }
}

TEST_CASE("automatic_warm_up: stays between its shortest and longest length") {
  const std::vector<double> stable = norms(steady, 0.99, 3000);  // comparable from step 119 on, every 7 steps
  CHECK(end_of(automatic_warm_up{.least_steps = 118}, stable, 0.99) == 119);
  CHECK(end_of(automatic_warm_up{.least_steps = 119}, stable, 0.99) == 126);
  CHECK(end_of(automatic_warm_up{.least_steps = 1000}, stable, 0.99) == 1001);
  CHECK(end_of(automatic_warm_up{.most_steps = 50}, stable, 0.99) == 50);
  CHECK(end_of(automatic_warm_up{.least_steps = 120, .most_steps = 120}, stable, 0.99) == 120);
  CHECK(end_of(automatic_warm_up{.least_steps = 120, .most_steps = 127}, stable, 0.99) == 126);
  const std::vector<double> falls = norms(falling(1e5), 0.9, 3000);
  CHECK(end_of(automatic_warm_up{.threshold = 1.0}, falls, 0.9) == never);
  CHECK(end_of(automatic_warm_up{.threshold = 1.0, .most_steps = 2000}, falls, 0.9) == 2000);
  automatic_warm_up::state_type state;
  CHECK(automatic_warm_up{.most_steps = 100}.ends_after(state, 300, 0.0, 0.9));  // lowered between saving and loading
}

TEST_CASE("automatic_warm_up: a norm of 0, or a missing norm, is not stable") {
  CHECK(end_of(automatic_warm_up{}, std::vector<double>(5000, 0.0), 0.999) == never);
  CHECK(end_of(automatic_warm_up{}, std::vector<double>(5000, infinity), 0.999) == never);
  CHECK(end_of(automatic_warm_up{}, std::vector<double>(5000, not_a_number), 0.999) == never);
  std::vector<double> late = norms(steady, 0.99, 1000);
  for (std::size_t t = 0; t < 100; ++t) late[t] = 0.0;
  CHECK(end_of(automatic_warm_up{}, late, 0.99) == 105 + 16 * 7);  // 105: the first multiple of 7 with a norm
}

TEST_CASE("automatic_warm_up: reports the compared ratio") {
  const double beta2 = 0.99;
  const std::vector<double> v = norms(falling(300.0), beta2, 1000);
  const automatic_warm_up schedule{.threshold = 1.0};
  automatic_warm_up::state_type state;
  for (std::uint64_t t = 1; t <= 1000; ++t) {
    CHECK_FALSE(schedule.ends_after(state, t, v[t], beta2));
    if (t < 119) CHECK(state.variance_ratio == 0.0);
    if (t < 119 || t % 7 != 0) continue;
    const auto corrected = [&](std::uint64_t at) { return v[at] / (1.0 - std::pow(beta2, static_cast<double>(at))); };
    CHECK(state.variance_ratio == doctest::Approx(corrected(t) / corrected(t - 112)).epsilon(1e-12));
  }
}

TEST_CASE("automatic_warm_up: resumes from a saved state") {
  const std::vector<double> v = norms(falling(300.0), 0.999, 12000);
  const automatic_warm_up schedule;
  const std::uint64_t expected = end_of(schedule, v, 0.999);
  REQUIRE(expected > 2000);
  REQUIRE(expected < v.size());
  automatic_warm_up::state_type state;
  for (std::uint64_t t = 1; t < expected; ++t) {
    CHECK_FALSE(schedule.ends_after(state, t, v[t], 0.999));
    automatic_warm_up::state_type loaded;
    std::memcpy(&loaded, &state, sizeof(state));
    state = loaded;
  }
  CHECK(schedule.ends_after(state, expected, v[expected], 0.999));
}

TEST_CASE("automatic_warm_up: restarts its comparison if the interval was changed") {
  const std::vector<double> v = norms(steady, 0.999, 5000);
  automatic_warm_up::state_type state;
  for (std::uint64_t t = 1; t <= 1000; ++t) CHECK_FALSE(automatic_warm_up{}.ends_after(state, t, v[t], 0.999));
  std::uint64_t t = 1001;
  while (t < v.size() && !automatic_warm_up{.interval = 160}.ends_after(state, t, v[t], 0.999)) ++t;
  CHECK(t == 1010 + 160);
}

TEST_CASE("warm_up: name a setting out of range") {
  CHECK(refusal(fixed_warm_up{.steps = 0}) == "slamb: fixed_warm_up's steps = 0, but it must be >= 1");
  CHECK(refusal(fixed_warm_up{.steps = 1}) == "nothing was thrown");
  for (const double threshold : {0.0, -1.0, 1.01, not_a_number})
    CHECK(refusal(automatic_warm_up{.threshold = threshold}).find("automatic_warm_up's threshold = ") !=
          std::string::npos);
  CHECK(refusal(automatic_warm_up{.least_steps = 10, .most_steps = 9}) ==
        "slamb: automatic_warm_up's most_steps = 9, but it must be 0 or at least least_steps = 10");
  CHECK(refusal(automatic_warm_up{}) == "nothing was thrown");
  CHECK(refusal(automatic_warm_up{.threshold = 1.0, .least_steps = 10, .most_steps = 10}) == "nothing was thrown");
}

TEST_CASE("warm_up: describe each setting") {
  CHECK(told_apart_by(fixed_warm_up{}, fixed_warm_up{}) == "no field");
  CHECK(told_apart_by(fixed_warm_up{}, fixed_warm_up{.steps = 1001}) == "fixed_warm_up's steps");
  using automatic = automatic_warm_up;
  CHECK(told_apart_by(automatic{}, automatic{.threshold = 0.95}) == "automatic_warm_up's threshold");
  CHECK(told_apart_by(automatic{}, automatic{.least_steps = 1}) == "automatic_warm_up's least_steps");
  CHECK(told_apart_by(automatic{}, automatic{.interval = 1}) == "automatic_warm_up's interval");
  CHECK(told_apart_by(automatic{}, automatic{.most_steps = 1}) == "automatic_warm_up's most_steps");
  CHECK(told_apart_by(automatic{}, automatic{.interval = 1, .most_steps = 1}) == "several fields");
}

}  // namespace schedule_warm_up_tests
