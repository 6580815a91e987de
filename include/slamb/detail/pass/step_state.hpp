// The state of a step, kept in the backend's memory so that the host need not wait for it.
//
// On a device a step is enqueued completely before any of it runs. Only the device knows if a gradient has overflowed, and
// the number of the step when earlier steps were skipped. So passes read `skip` themselves, and values that depend on t are
// computed by functions that the launcher invokes in order with the passes.
#pragma once

#include <cmath>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

/// Tiles in a few ranges, in order; the last ones may be empty.
struct tile_ranges {
  tile_range of[3];
};

/// The outcome of the steps so far, as far as the host may need it.
struct step_outcome {
  std::uint64_t taken = 0;  ///< t: steps so far
  tile_ranges late{};       ///< tensors with late elements, where a recipe has searched for them
};

/// The run state of an optimizer, in the backend's memory.
struct step_record : step_outcome {
  std::uint64_t skipped = 0;      ///< steps skipped because a gradient of some rank was not finite
  std::uint64_t local_skips = 0;  ///< local steps taken without this rank's gradient, which was not finite
  double gradient_scale = 1.0;    ///< the gradient as it is read, times this, is g
  float input_scale = 1.0F;       ///< multiplies the user's gradients as they are read
  double norm = -1.0;             ///< ‖g‖ of this step before clipping; negative: not computed
  double last_norm = 0.0;         ///< ‖g‖ of the last step taken
  std::uint32_t not_finite = 0;   ///< not 0: a pass of this rank has found a value that is not finite in this step
  std::uint32_t found_inf = 0;    ///< not 0: a framework has found an overflow, or the scale of gradients is not usable
  std::uint32_t skip = 0;         ///< not 0: the step is skipped
  std::uint32_t was_skipped = 0;  ///< not 0: the last step was skipped
  std::uint32_t has_norm = 0;     ///< not 0: last_norm is valid
  std::uint64_t skipped_exchanges =
      0;                         ///< that followed a step which was taken, because a value of a rank was not finite
  agreement_record agreement{};  ///< of the ranks
};

/// The fingerprint of this step.
/// @param in_node  true: also of values that must be equal only within a node
SLAMB_HOST_DEVICE inline std::uint64_t fingerprint_of(const step_record& record, bool in_node = false) {
  return record.agreement.fingerprint(record.taken, in_node);
}

/// Ranks have diverged: skips this step and all after it.
SLAMB_HOST_DEVICE inline void mark_diverged(step_record& record) {
  record.agreement.mark_diverged(record.taken);
  record.skip = 1;
}

// Functions that a launcher invokes: trivially copyable, called once by one thread. A function with arguments (thread, threads)
// may instead be called by several threads that share its work; without arguments it does all of it.

struct nothing_to_do {
  SLAMB_HOST_DEVICE void operator()() const {}
};

/// Several functions in order.
template <class First, class... Rest>
struct in_order {
  First first;
  in_order<Rest...> rest;

  SLAMB_HOST_DEVICE void operator()() const {
    first();
    rest();
  }
};
template <class Last>
struct in_order<Last> {
  Last last;

  SLAMB_HOST_DEVICE void operator()() const { last(); }
};

template <class Last>
in_order<Last> all_in_order(const Last& last) {
  return {last};
}
template <class First, class... Rest>
auto all_in_order(const First& first, const Rest&... rest) {
  return in_order<First, Rest...>{first, all_in_order(rest...)};
}

/// The scale of gradients as they are read, and the cell by which a framework's loss scaler and the step tell each other of
/// overflows. Cells are in the backend's memory.
struct gradient_scaling {
  double factor = 1.0;                ///< g = factor · gradient / *loss_scale; in [1.2e-38, 3.4e38]
  const float* loss_scale = nullptr;  ///< read when a step begins to run; null: 1
  /// Not 0 when all gradients of a step are ready: all ranks skip it. Becomes 1 when a step is skipped, and never 0. Null: unused
  float* found_inf = nullptr;
};

/// Begins a step, and its fingerprint: of the steps before and their number. `write_learning_rates` adds the rates.
struct begin_step {
  step_record* record;
  double gradient_scale;
  gradient_scaling scaling{};

  SLAMB_HOST_DEVICE void operator()() const {
    record->gradient_scale = gradient_scale;
    record->input_scale = static_cast<float>(
        scaling.loss_scale == nullptr ? scaling.factor : scaling.factor / static_cast<double>(*scaling.loss_scale));
    record->norm = -1.0;
    record->found_inf = record->input_scale > 0.0F && record->input_scale <= 0x1.fffffep127F ? 0 : 1;
    record->not_finite = record->found_inf;
    record->skip = record->agreement.diverged;
    record->agreement.begin(record->taken);
  }
};

/// Skips the step, on all ranks, if a framework has found an overflow.
struct read_found_inf {
  step_record* record;
  const float* found_inf;

  SLAMB_HOST_DEVICE void operator()() const {
    if (*found_inf != 0.0F) record->not_finite = record->found_inf = 1;
  }
};

/// Keeps a hash for the fingerprint of a step: the sum of a pass, or a word.
struct keep_hash {
  step_record* record;
  hashed_values values;
  const double* sum = nullptr;  ///< null: `word`
  std::uint64_t word = 0;

  SLAMB_HOST_DEVICE void operator()() const {
    if (values == hashed_values::payload && record->skip != 0) return;  // it has not been received
    record->agreement.keep(values, sum == nullptr ? word : bits_of(*sum), record->taken);
  }
};

/// Copies `diverged` to a place that nothing else writes.
struct save_diverged {
  step_record* record;

  SLAMB_HOST_DEVICE void operator()() const { record->agreement.saved_diverged = record->agreement.diverged; }
};

/// Lets ranks take steps again.
struct forget_difference {
  step_record* record;
  bool is_other_run = false;

  SLAMB_HOST_DEVICE void operator()() const { record->agreement.forget_difference(is_other_run); }
};

/// Ends a step, and clears the flags for passes between steps.
struct end_step {
  step_record* record;
  float* found_inf = nullptr;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->skip == 0) {
      ++record->taken;
      record->agreement.end();
      record->last_norm = record->norm;
      record->has_norm = record->norm < 0.0 ? 0 : 1;
    } else if (record->agreement.diverged == 0) {
      ++record->skipped;
      if (found_inf != nullptr) *found_inf = 1.0F;
    }
    record->was_skipped = record->skip;
    record->not_finite = record->found_inf = record->skip = 0;
  }
};

/// Begins an exchange that follows a step: it is skipped if the step was.
struct begin_following_exchange {
  step_record* record;

  SLAMB_HOST_DEVICE void operator()() const {
    record->skip = record->was_skipped != 0 || record->agreement.diverged != 0 ? 1 : 0;
    record->agreement.begin_following_exchange(record->taken);
  }
};

/// Ends it, and clears the flags for passes between steps.
struct end_following_exchange {
  step_record* record;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->skip == 0)
      record->agreement.end_following_exchange();
    else if (record->was_skipped == 0 && record->agreement.diverged == 0)
      ++record->skipped_exchanges;
    record->not_finite = record->found_inf = record->skip = 0;
  }
};

/// Takes a local step without this rank's gradient: no collective tells the other ranks, which take the step too.
struct drop_local_gradient {
  step_record* record;
  float* found_inf = nullptr;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->agreement.diverged != 0) return;
    if (record->skip != 0) {
      ++record->local_skips;
      record->norm = -1.0;
      if (found_inf != nullptr) *found_inf = 1.0F;
    }
    record->skip = 0;
  }
};

/// Skips the step if this rank has found a value that is not finite. For steps without a collective, or after it.
struct skip_if_not_finite {
  step_record* record;
  bool heeds_step = true;  ///< false: only values that a framework has found

  SLAMB_HOST_DEVICE void operator()() const {
    if ((heeds_step ? record->not_finite : record->found_inf) != 0) record->skip = 1;
  }
};

/// The host's estimate of the number of steps taken, without waiting: between the steps known to have been taken and those
/// enqueued, because enqueued steps may be skipped.
class step_estimate {
 public:
  void set(std::uint64_t taken) noexcept { least_ = most_ = taken; }
  /// One more step has been enqueued.
  void add_pending() noexcept { ++most_; }
  /// One more step has been enqueued, and is taken for certain.
  void add_taken() noexcept {
    ++least_;
    ++most_;
  }
  /// From now on any number of steps may be taken unseen, as by replays of a graph.
  void invalidate() noexcept { is_invalid_ = true; }

  /// t of the next step.
  /// @param look  returns the number of steps taken, and waits; called only if it is unknown
  template <class Look>
  std::uint64_t next(const Look& look) {
    if (is_invalid_ || least_ != most_) set(look());
    return least_ + 1;
  }

  /// holds(t) of the next step. Calls `look` only if the answer depends on pending steps.
  template <class Predicate, class Look>
  bool holds_at_next(const Predicate& holds, const Look& look) {
    constexpr std::uint64_t most_unknown = 4096;  // the predicate is called for each
    if (is_invalid_ || most_ - least_ >= most_unknown) set(look());
    const bool first = holds(least_ + 1);
    for (std::uint64_t t = least_ + 2; t <= most_ + 1; ++t)
      if (holds(t) != first) return holds(next(look));
    return first;
  }

 private:
  std::uint64_t least_ = 0;
  std::uint64_t most_ = 0;
  bool is_invalid_ = false;
};

}  // namespace slamb::detail
