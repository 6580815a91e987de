// The end of the 1-bit optimizers' warm-up: after a number of steps, or when the variance is stable.
//
// A schedule consists of hyper-parameters and a small run state, which the optimizer keeps and saves.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "slamb/core/detail/questions.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Decides when a warm-up ends. `state_type` is trivially copyable and, default-initialised, the start of training.
///
/// `wants_variance_norm(t, beta2)` returns true if step t needs ‖v‖₁, the sum of v over all tensors. `ends_after(state, t,
/// variance_norm, beta2)` is called once after each step t = 1, 2, … of the warm-up, with that sum if it is wanted. It returns
/// true if the compressed phase begins with step t + 1, and must be equal on all ranks. `state.variance_ratio` is the last
/// compared value, for reports; 0: none yet. `validate(state)` is optional, and called before a saved state is restored: it
/// throws std::invalid_argument for a state that the schedule cannot produce.
template <class W>
concept warm_up_schedule = detail::copyable<W> && std::is_trivially_copyable_v<typename W::state_type> &&
    std::is_default_constructible_v<typename W::state_type> &&
    requires(const W& schedule, typename W::state_type& state, std::uint64_t t, double variance_norm, double beta2) {
  { schedule.wants_variance_norm(t, beta2) } -> std::same_as<bool>;
  { schedule.ends_after(state, t, variance_norm, beta2) } -> std::same_as<bool>;
  { state.variance_ratio } -> detail::converts_to<double>;
};

/// A warm-up of `steps` steps; 15 to 25 % of a training is usual.
///
/// *Reference*: 1-bit Adam, arXiv 2102.02888; 1-bit LAMB, arXiv 2104.06069.
struct fixed_warm_up {
  std::uint64_t steps = 1000;  ///< ≥ 1: with none, v would be 0 and the first update m/ε

  struct state_type {
    double variance_ratio = 0.0;  ///< stays 0: nothing is compared
  };

  /// @throws std::invalid_argument
  void validate() const { detail::require_in(steps >= 1, "fixed_warm_up's steps", static_cast<double>(steps), ">= 1"); }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add_word("fixed_warm_up's steps", steps);
  }

  bool wants_variance_norm(std::uint64_t /*t*/, double /*beta2*/) const { return false; }

  bool ends_after(state_type& /*state*/, std::uint64_t t, double /*variance_norm*/, double /*beta2*/) const {
    return t >= steps;
  }
};

/// A warm-up that ends when the variance has become stable: ‖v̂_t‖₁/‖v̂_{t−Δ}‖₁ ≥ `threshold`, v̂ = v/(1 − β2^t).
///
/// Norms are taken every s = ⌈Δ/16⌉ steps and compared with the norm 16 samples before, at a distance of 16 s, up to 15 steps
/// more than Δ. Two norms can first be compared at step 17 s. A norm of 0 is not stable; a growing norm is.
///
/// *Cost*: the sum of v at every s-th step of the warm-up; 152 bytes of state.
/// *Determinism*: ranks with equal norms decide equally on every system: powers are products of doubles, because the last bit of
/// a library's pow differs between systems.
/// *Reference*: 1-bit Adam, arXiv 2102.02888. *Deviation*: it compares v itself, which starts at 0, so that its ratio is
/// above 1 at first for any gradients. As 1 − β2^t grows with t, the ratio of v̂ is the smaller one. If it reaches the threshold,
/// the ratio of v has reached it too.
struct automatic_warm_up {
  double threshold = 0.96;        ///< in (0, 1]
  std::uint64_t least_steps = 0;  ///< the warm-up is longer than this; set it to the warm-up of the learning rate
  std::uint64_t interval = 0;     ///< Δ in steps; 0: 1/(1 − β2), rounded
  std::uint64_t most_steps = 0;   ///< the warm-up is at most this long; 0: no limit

  static constexpr std::uint64_t samples = 16;  ///< in one distance

  struct state_type {
    double norm[samples] = {};    ///< ‖v̂‖₁ of the last samples, in a ring
    std::uint64_t spacing = 0;    ///< steps from sample to sample
    std::uint64_t taken = 0;      ///< samples so far
    double variance_ratio = 0.0;  ///< the value last compared with the threshold
  };

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(threshold > 0.0 && threshold <= 1.0, "automatic_warm_up's threshold", threshold, "in (0, 1]");
    detail::require_in(most_steps == 0 || most_steps >= least_steps, "automatic_warm_up's most_steps",
                       static_cast<double>(most_steps),
                       "0 or at least least_steps = " + detail::to_text(static_cast<double>(least_steps)));
  }
  /// @throws std::invalid_argument for a state that no training can leave
  void validate(const state_type& state) const {
    detail::require_count("automatic_warm_up's taken", state.taken);
    detail::require_count("automatic_warm_up's spacing", state.spacing);
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("automatic_warm_up's threshold", threshold);
    fields.add_word("automatic_warm_up's least_steps", least_steps);
    fields.add_word("automatic_warm_up's interval", interval);
    fields.add_word("automatic_warm_up's most_steps", most_steps);
  }

  /// s, the steps from one sample to the next.
  std::uint64_t spacing(double beta2) const {
    const std::uint64_t distance =
        interval != 0 ? interval : static_cast<std::uint64_t>(std::round(1.0 / (1.0 - beta2)));
    return distance / samples + (distance % samples != 0 ? 1 : 0);
  }

  bool wants_variance_norm(std::uint64_t t, double beta2) const { return t % spacing(beta2) == 0; }

  /// @param variance_norm  ‖v_t‖₁, without bias correction
  bool ends_after(state_type& state, std::uint64_t t, double variance_norm, double beta2) const {
    const bool is_stable = wants_variance_norm(t, beta2) && compare(state, t, variance_norm, beta2);
    return (is_stable && t > least_steps) || (most_steps != 0 && t >= most_steps);
  }

 private:
  // Takes a sample. Returns true if v was stable over the distance that ends with it.
  bool compare(state_type& state, std::uint64_t t, double variance_norm, double beta2) const {
    if (state.spacing != spacing(beta2)) {  // the first sample, or the training continues with another distance
      state = {};
      state.spacing = spacing(beta2);
    }
    double& oldest = state.norm[state.taken % samples];
    const double before = oldest;
    oldest = variance_norm / one_minus_power(beta2, t);
    if (state.taken++ < samples || !is_norm(before) || !is_norm(oldest)) return false;
    state.variance_ratio = oldest / before;
    return state.variance_ratio >= threshold;
  }

  static bool is_norm(double x) { return x > 0.0 && x <= std::numeric_limits<double>::max(); }

  // 1 − β^t by squaring. Volatile: fused with the subtraction, the last product would depend on the compiler's flags.
  static double one_minus_power(double beta, std::uint64_t t) {
    volatile double power = 1.0;
    for (double square = beta; t > 0; t /= 2, square *= square)
      if (t % 2 == 1) power = power * square;
    return 1.0 - power;
  }
};

static_assert(warm_up_schedule<fixed_warm_up>);
static_assert(warm_up_schedule<automatic_warm_up>);

}  // namespace slamb
