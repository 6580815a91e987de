// Learning rates as functions of the step: small aggregates that can wrap one another. Optimizers do not know them: the training
// loop calls `optimizer.step(schedule(t))`, with one of these or any other function of a step number.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string_view>

#include "slamb/core/detail/questions.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/real.hpp"

namespace slamb {
namespace detail {

// Checks like those of core/error.hpp that also run at compile time; std::isfinite is not constexpr in C++20.
constexpr bool is_finite_non_negative(double value) {
  return value >= 0.0 && value <= std::numeric_limits<double>::max();
}

constexpr void require_rate(std::string_view name, double value) {
  if (!is_finite_non_negative(value)) throw_out_of_range(name, value, "finite and >= 0");
}

constexpr void require_at_least_one(std::string_view name, std::uint64_t value) {
  if (value < 1) throw_out_of_range(name, static_cast<double>(value), ">= 1");
}

/// The progress of a decay over `steps` steps before `step` is taken: 0 at step 1, 1 after step `steps`.
constexpr double decay_progress(std::uint64_t step, std::uint64_t steps) {
  return static_cast<double>(std::min(step - 1, steps)) / static_cast<double>(steps);
}

}  // namespace detail

namespace learning_rate {

/// A callable that returns the learning rate of step number 1, 2, …
template <class S>
concept schedule = requires(const S& rate_of, std::uint64_t step) {
  { rate_of(step) } -> detail::converts_to<double>;
};

/// The same rate at every step.
struct constant {
  double rate = 0.0;

  /// @throws std::invalid_argument `rate` negative or not finite; `step` 0.
  constexpr double operator()(std::uint64_t step) const {
    detail::require_rate("constant::rate", rate);
    detail::require_at_least_one("constant: step", step);
    return rate;
  }
};

/// Decays from `peak` at step 1 to `end`: end + (peak − end)(1 − (t − 1)/steps)^power; `end` at every step > `steps`.
///
/// power = 1 is linear decay, the schedule of the LAMB paper.
struct polynomial_decay {
  double peak = 0.0;
  double end = 0.0;
  std::uint64_t steps = 1;
  double power = 1.0;

  /// @throws std::invalid_argument `peak` or `end` negative or not finite; `steps` or `step` 0; `power` not > 0.
  double operator()(std::uint64_t step) const {
    detail::require_rate("polynomial_decay::peak", peak);
    detail::require_rate("polynomial_decay::end", end);
    detail::require_at_least_one("polynomial_decay::steps", steps);
    detail::require_positive("polynomial_decay::power", power);
    detail::require_at_least_one("polynomial_decay: step", step);
    return end + rounded_product(peak - end, std::pow(1.0 - detail::decay_progress(step, steps), power));
  }
};

/// Decays by half a cosine from `peak` at step 1 to `end`: end + (peak − end)(1 + cos(π(t − 1)/steps))/2; `end` at every
/// step > `steps`.
struct cosine_decay {
  double peak = 0.0;
  double end = 0.0;
  std::uint64_t steps = 1;

  /// @throws std::invalid_argument `peak` or `end` negative or not finite; `steps` or `step` 0.
  double operator()(std::uint64_t step) const {
    detail::require_rate("cosine_decay::peak", peak);
    detail::require_rate("cosine_decay::end", end);
    detail::require_at_least_one("cosine_decay::steps", steps);
    detail::require_at_least_one("cosine_decay: step", step);
    if (step > steps) return end;
    return end +
           rounded_product((peak - end) * 0.5, 1.0 + std::cos(std::numbers::pi * detail::decay_progress(step, steps)));
  }
};

/// `initial` for the first `every` steps, then multiplied by `factor` after each `every` steps:
/// initial · factor^⌊(t − 1)/every⌋.
struct step_decay {
  double initial = 0.0;
  double factor = 0.1;
  std::uint64_t every = 1;

  /// @throws std::invalid_argument `initial` or `factor` negative or not finite; `every` or `step` 0.
  constexpr double operator()(std::uint64_t step) const {
    detail::require_rate("step_decay::initial", initial);
    detail::require_rate("step_decay::factor", factor);
    detail::require_at_least_one("step_decay::every", every);
    detail::require_at_least_one("step_decay: step", step);
    double rate = initial;
    double square = factor;  // factor^1, factor^2, factor^4, …: std::pow is not constexpr
    for (std::uint64_t times = (step - 1) / every; times > 0; times /= 2) {
      if (times % 2 == 1) rate *= square;
      square *= square;
    }
    return rate;
  }
};

/// A linear rise before another schedule: `steps` steps of after(1) · t/(steps + 1), then after(t − steps).
///
/// Step `steps` + 1 is the first at the full rate. With `steps` = 0 it is `after` itself.
///
///     slamb::learning_rate::linear_warmup schedule{30, slamb::learning_rate::cosine_decay{.peak = 0.01, .steps = 270}};
///     optimizer.step(schedule(t));  // t = 1, 2, …
template <schedule Schedule>
struct linear_warmup {
  std::uint64_t steps = 0;
  Schedule after{};

  /// @throws std::invalid_argument `step` 0; the exceptions of `after`.
  constexpr double operator()(std::uint64_t step) const {
    detail::require_at_least_one("linear_warmup: step", step);
    if (step > steps) return after(step - steps);
    return after(1) * (static_cast<double>(step) / (static_cast<double>(steps) + 1.0));
  }
};

template <class Schedule>
linear_warmup(std::uint64_t, Schedule) -> linear_warmup<Schedule>;

static_assert(schedule<constant>);
static_assert(schedule<polynomial_decay>);
static_assert(schedule<cosine_decay>);
static_assert(schedule<step_decay>);
static_assert(schedule<linear_warmup<constant>>);

}  // namespace learning_rate
}  // namespace slamb
