// The state of a step, kept in the backend's memory so that the host need not wait for it.
//
// On a device a step is enqueued completely before any of it runs. Only the device knows if a gradient has overflowed, and
// the number of the step when earlier steps were skipped. So passes read `skip` themselves, and values that depend on t are
// computed by functions that the executor invokes in order with the passes.
#pragma once

#include <cmath>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

/// Tiles in a few ranges, in order; the last ones may be empty.
struct tile_ranges {
  tile_range of[3];
};

/// What the host may have to know of the steps so far.
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
  std::uint32_t diverged = 0;  ///< not 0: ranks have diverged, and all steps are skipped until they have been compared
  std::uint32_t saved_diverged = 0;  ///< a copy of `diverged`, made by `save_diverged`
  std::uint32_t node_diverged =
      0;                         ///< not 0: the ranks of this node have diverged; its number + 1, for the other nodes
  std::uint64_t lineage = 0;     ///< a hash of all steps so far: their learning rates and received values
  std::uint64_t history = 0;     ///< lineage with the learning rates of this step
  std::uint64_t parameters = 0;  ///< a hash of the parameters before step `parameters_before`
  std::uint64_t parameters_before = 0;     ///< 0: there is no hash
  std::uint64_t of_node = 0;               ///< the hash in a node whose parameters may differ from other nodes'
  std::uint64_t of_node_before = 0;        ///< the step of that hash; 0: there is no hash
  std::uint64_t diverged_fingerprint = 0;  ///< the fingerprint of the step in which ranks diverged
  std::uint64_t received = 0;     ///< a hash of some values received in this step, which must be equal on all ranks
  std::uint64_t selection = 0;    ///< a hash of the selection of step `selected_in`
  std::uint64_t selected_in = 0;  ///< 0: there is no hash
  std::uint64_t payload = 0;      ///< a hash of the payload received in step `payload_of`
  std::uint64_t payload_of = 0;   ///< 0: there is no hash
  std::uint32_t has_norm = 0;     ///< not 0: last_norm is valid
  std::uint64_t given = 0;        ///< a hash of the tensors without a gradient and of changed options; 0: of neither
  std::uint64_t skipped_exchanges =
      0;  ///< that followed a step which was taken, because a value of a rank was not finite
};

// Functions that an executor invokes: trivially copyable, called once by one thread. A function with arguments (thread, threads)
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

/// How gradients are scaled as they are read, and the cell by which a framework's loss scaler and the step tell each other of
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
    record->skip = record->diverged;
    record->received = 0;
    record->history = hash_with(record->lineage, record->taken);
    if (record->given != 0) record->history = hash_with(record->history, record->given);
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

/// Adds the hash of the parameters to the fingerprint of the next step.
struct note_parameters {
  step_record* record;
  const double* sum;
  bool only_in_node = false;

  SLAMB_HOST_DEVICE void operator()() const {
    (only_in_node ? record->of_node : record->parameters) = bits_of(*sum);
    (only_in_node ? record->of_node_before : record->parameters_before) = record->taken + 1;
  }
};

/// Adds the hash of the payload received in this step to the fingerprint of the next step.
struct note_payload {
  step_record* record;
  const double* sum;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->skip != 0) return;
    record->payload = bits_of(*sum);
    record->payload_of = record->taken + 1;
  }
};

/// Adds the hash of the selection to the fingerprint of this step.
struct note_selection {
  step_record* record;
  const double* sum;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->diverged != 0) return;  // the selection of the step in which ranks diverged is still to be compared
    record->selection = bits_of(*sum);
    record->selected_in = record->taken + 1;
  }
};

/// The fingerprint of this step: a hash of everything that must be equal on all ranks. A node whose ranks have diverged has
/// another fingerprint than the other nodes.
/// @param in_node  true: also of values that must be equal only within a node
SLAMB_HOST_DEVICE inline std::uint64_t fingerprint_of(const step_record& record, bool in_node = false) {
  const bool has_parameters = record.parameters_before == record.taken + 1;
  std::uint64_t all = hash_with(record.history, has_parameters ? record.parameters : 0);
  if (record.selected_in == record.taken + 1) all = hash_with(all, record.selection);
  if (record.payload_of != 0 && record.payload_of == record.taken) all = hash_with(all, record.payload);
  if (in_node && record.of_node_before == record.taken + 1) all = hash_with(all, record.of_node);
  return record.node_diverged == 0 ? all : hash_with(all, record.node_diverged);
}

/// Adds a word to the fingerprint of the next step, instead of the parameters.
struct note_word {
  step_record* record;
  std::uint64_t word;

  SLAMB_HOST_DEVICE void operator()() const {
    record->parameters = word;
    record->parameters_before = record->taken + 1;
  }
};

/// Copies `diverged` to a place that nothing else writes.
struct save_diverged {
  step_record* record;

  SLAMB_HOST_DEVICE void operator()() const { record->saved_diverged = record->diverged; }
};

/// Ranks have diverged: skips this step and all after it.
SLAMB_HOST_DEVICE inline void note_difference(step_record& record) {
  if (record.diverged == 0) record.diverged_fingerprint = fingerprint_of(record);
  record.skip = record.diverged = 1;
}

/// Ends a step, and clears the flags for passes between steps.
struct end_step {
  step_record* record;
  float* found_inf = nullptr;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->skip == 0) {
      ++record->taken;
      record->lineage = hash_with(record->history, record->received);
      record->last_norm = record->norm;
      record->has_norm = record->norm < 0.0 ? 0 : 1;
    } else if (record->diverged == 0) {
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
    record->skip = record->was_skipped != 0 || record->diverged != 0 ? 1 : 0;
    record->received = 0;
    record->history = hash_with(record->lineage, record->taken);
  }
};

/// Ends it, and clears the flags for passes between steps.
struct end_following_exchange {
  step_record* record;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->skip == 0)
      record->lineage = hash_with(record->lineage, record->received);
    else if (record->was_skipped == 0 && record->diverged == 0)
      ++record->skipped_exchanges;
    record->not_finite = record->found_inf = record->skip = 0;
  }
};

/// Takes a local step without this rank's gradient: no collective tells the other ranks, which take the step too.
struct drop_local_gradient {
  step_record* record;
  float* found_inf = nullptr;

  SLAMB_HOST_DEVICE void operator()() const {
    if (record->diverged != 0) return;
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
