// Where a training by 0/1 Adam is in its two phases: they decide the payload of each step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "slamb/detail/state/state_part.hpp"
#include "slamb/optimizer/optimizer.hpp"
#include "slamb/schedule/intervals.hpp"

namespace slamb::detail {

/// The payload of a step.
enum class zero_one_payload : std::uint8_t {
  dense_gradient,      // phase A, at a refresh of the variance
  quantized_gradient,  // phase A, else
  quantized_update,    // phase B: the local update
  nothing              // phase B: a local step
};

/// The schedules of both phases and their states, after the last step that was taken: docs/algorithms/zero_one_adam.md.
template <variance_schedule VarianceSchedule, local_schedule LocalSchedule>
class zero_one_phase {
 public:
  zero_one_phase(const VarianceSchedule& variance, const LocalSchedule& local) : variance_(variance), local_(local) {}

  /// True in phase B.
  bool is_local() const noexcept { return is_local_; }

  zero_one_payload payload_at(std::uint64_t tau) const {
    if (is_local_)
      return local_.exchanges(local_state_, tau) ? zero_one_payload::quantized_update : zero_one_payload::nothing;
    return variance_.refreshes(variance_state_, tau) ? zero_one_payload::dense_gradient
                                                     : zero_one_payload::quantized_gradient;
  }

  /// True if phase A ends after the step.
  bool ends_after(std::uint64_t tau) const { return !is_local_ && variance_.ends_after(tau); }

  /// Continues after a step that was taken.
  void advance(std::uint64_t tau) {
    if (is_local_) return local_.advance(local_state_);
    variance_.advance(variance_state_, tau);
    is_local_ = variance_.ends_after(tau);
  }

  /// True if its schedules are those whose states `past_intervals` has.
  static constexpr bool has_intervals = std::is_same_v<VarianceSchedule, exponential_variance_interval> &&
                                        std::is_same_v<LocalSchedule, doubling_local_interval>;

  /// Continues as after so many steps from the start, or with the given intervals. A first phase that has ended does not begin
  /// again.
  /// @throws std::invalid_argument for intervals that no training can have; nothing has changed then
  void restart_after(const past_steps& past) {
    zero_one_phase then(variance_, local_);
    for (std::uint64_t tau = 2; tau <= past.taken + 1; ++tau) then.advance(tau);
    if constexpr (has_intervals) {
      if (past.intervals) {
        then.variance_state_ = {past.intervals->variance, past.intervals->refreshes};
        then.local_state_ = {past.intervals->local, past.intervals->local_steps};
        variance_.validate(then.variance_state_);
        local_.validate(then.local_state_);
      }
    }
    local_state_ = then.local_state_;
    if (is_local_) return;
    variance_state_ = then.variance_state_;
    is_local_ = then.is_local_;
  }

  /// The gradients of which v is made, with that of the next step if it refreshes v.
  std::uint64_t refreshes(bool in_next_step = false) const {
    std::uint64_t before = 0;  // a schedule that does not tell may have refreshed v once
    if constexpr (requires { variance_.refreshed(variance_state_); }) before = variance_.refreshed(variance_state_);
    return std::max<std::uint64_t>(before + (in_next_step ? 1 : 0), 1);
  }

  void visit_state(const state_visitor& part) {
    visit_schedule(part, "variance schedule", variance_, variance_state_, state_part::common);
    visit_schedule(part, "local schedule", local_, local_state_, state_part::common);
    visit_flag(part, "phase", is_local_, state_part::common);
  }

 private:
  VarianceSchedule variance_;
  LocalSchedule local_;
  typename VarianceSchedule::state_type variance_state_{};
  typename LocalSchedule::state_type local_state_{};
  bool is_local_ = false;
};

}  // namespace slamb::detail
