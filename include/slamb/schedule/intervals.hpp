// The intervals of 0/1 Adam, which double during training, and of SLAMB's averagings.
//
// A schedule consists of hyper-parameters and a small run state, which the optimizer keeps and saves. 0/1 Adam counts its
// schedules' steps as τ = t + 1, for t = 1, 2, ….
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "slamb/core/detail/questions.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Decides when the first phase of 0/1 Adam refreshes the variance, and when that phase ends. `state_type` is trivially copyable
/// and, default-initialised, the start of training.
///
/// `refreshes(state, tau)` is called before a step and `advance(state, tau)` after it. Then `ends_after(tau)` returns true if the
/// variance is frozen from the next step on. Results must be equal on all ranks. `validate(state)` is optional, and called before
/// a saved state is restored: it throws std::invalid_argument for a state that the schedule cannot produce. `refreshed(state)` is
/// optional too: the number of refreshes so far, from which Adam's own bound follows. Without it the bound is that after one
/// refresh, the loosest.
template <class V>
concept variance_schedule = detail::copyable<V> && std::is_trivially_copyable_v<typename V::state_type> &&
    std::is_default_constructible_v<typename V::state_type> &&
    requires(const V& schedule, typename V::state_type& state, const typename V::state_type& before,
             std::uint64_t tau) {
  { schedule.refreshes(before, tau) } -> std::same_as<bool>;
  schedule.advance(state, tau);
  { schedule.ends_after(tau) } -> std::same_as<bool>;
};

/// Decides when the second phase of 0/1 Adam exchanges its local updates. `state_type` is trivially copyable and,
/// default-initialised, the start of that phase.
///
/// `exchanges(state, tau)` is called at a step and `advance(state)` after it. Results must be equal on all ranks.
/// `validate(state)` as for a variance_schedule.
template <class L>
concept local_schedule = detail::copyable<L> && std::is_trivially_copyable_v<typename L::state_type> &&
    std::is_default_constructible_v<typename L::state_type> &&
    requires(const L& schedule, typename L::state_type& state, const typename L::state_type& before,
             std::uint64_t tau) {
  { schedule.exchanges(before, tau) } -> std::same_as<bool>;
  schedule.advance(state);
};

/// Refreshes the variance if τ mod V = 0. V is 1 at first and doubles after every `update_scaler` refreshes, until the end of the
/// first step with τ > `freeze_step`.
///
/// *Reference*: 0/1 Adam, arXiv 2202.06009.
struct exponential_variance_interval {
  std::uint64_t freeze_step = 12500;
  std::uint64_t update_scaler = 16;  ///< κ, ≥ 1

  struct state_type {
    std::uint64_t interval = 1;  ///< V
    std::uint64_t updates = 0;   ///< refreshes since V was last doubled
  };

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(update_scaler >= 1, "exponential_variance_interval's update_scaler",
                       static_cast<double>(update_scaler), ">= 1");
  }
  /// @throws std::invalid_argument for a state that no training can leave
  void validate(const state_type& state) const {
    detail::require_word_in(std::has_single_bit(state.interval), "exponential_variance_interval's interval",
                            state.interval, "a power of two");
    detail::require_count("exponential_variance_interval's interval", state.interval);
    detail::require_count("exponential_variance_interval's updates", state.updates);
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add_word("exponential_variance_interval's freeze_step", freeze_step);
    fields.add_word("exponential_variance_interval's update_scaler", update_scaler);
  }

  bool refreshes(const state_type& state, std::uint64_t tau) const { return tau % state.interval == 0; }

  void advance(state_type& state, std::uint64_t tau) const {
    if (!refreshes(state, tau) || ++state.updates < update_scaler) return;
    state.interval *= 2;
    state.updates = 0;
  }

  bool ends_after(std::uint64_t tau) const { return tau > freeze_step; }

  /// The number of refreshes so far.
  std::uint64_t refreshed(const state_type& state) const {
    return update_scaler * static_cast<std::uint64_t>(std::countr_zero(state.interval)) + state.updates;
  }
};

/// Exchanges local updates if τ mod L = 0. L is 1 at first and, after every `scaler` steps, becomes min(2 L, `clipper`).
///
/// *Reference*: 0/1 Adam, arXiv 2202.06009.
struct doubling_local_interval {
  std::uint64_t scaler = 32678;  ///< steps, ≥ 1
  std::uint64_t clipper = 16;    ///< the largest L, ≥ 1

  struct state_type {
    std::uint64_t interval = 1;  ///< L
    std::uint64_t steps = 0;     ///< since L was last doubled
  };

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(scaler >= 1, "doubling_local_interval's scaler", static_cast<double>(scaler), ">= 1");
    detail::require_in(clipper >= 1, "doubling_local_interval's clipper", static_cast<double>(clipper), ">= 1");
  }
  /// @throws std::invalid_argument for a state that no training can leave
  void validate(const state_type& state) const {
    detail::require_word_in(state.interval >= 1, "doubling_local_interval's interval", state.interval, ">= 1");
    detail::require_count("doubling_local_interval's steps", state.steps);
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add_word("doubling_local_interval's scaler", scaler);
    fields.add_word("doubling_local_interval's clipper", clipper);
  }

  bool exchanges(const state_type& state, std::uint64_t tau) const { return tau % state.interval == 0; }

  void advance(state_type& state) const {
    if (++state.steps < scaler) return;
    state.interval = state.interval > clipper / 2 ? clipper : 2 * state.interval;
    state.steps = 0;
  }
};

/// True at step 1 and at every `steps`-th after it: (t − 1) mod steps = 0.
struct every {
  std::uint64_t steps = 1;  ///< ≥ 1

  /// @throws std::invalid_argument
  void validate() const { detail::require_in(steps >= 1, "every's steps", static_cast<double>(steps), ">= 1"); }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add_word("every's steps", steps);
  }

  /// @param t  1, 2, …
  /// @throws std::invalid_argument `steps` or `t` 0
  bool operator()(std::uint64_t t) const {
    validate();
    detail::require_in(t >= 1, "every: step", static_cast<double>(t), ">= 1");
    return (t - 1) % steps == 0;
  }
};

static_assert(variance_schedule<exponential_variance_interval>);
static_assert(local_schedule<doubling_local_interval>);
static_assert(std::predicate<const every&, std::uint64_t>);

}  // namespace slamb
