// The plan of 0/1 Adam: quantized gradients, with dense ones at refreshes of the variance, then quantized updates with local
// steps between them.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "slamb/optimizer/zero_one_adam.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::plan {

/// The plan of `zero_one_adam`.
template <class Compressor, class ErrorFeedback, class VarianceSchedule, class LocalSchedule, class DenseCompressor>
class traffic_plan<zero_one_adam_options<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule, DenseCompressor>> {
 public:
  using options_type =
      zero_one_adam_options<Compressor, ErrorFeedback, VarianceSchedule, LocalSchedule, DenseCompressor>;

  /// The kinds of step.
  enum class kind {
    refresh,   ///< the gradient is exchanged dense, and the variance is refreshed
    gradient,  ///< the gradient is exchanged quantized
    update,    ///< the local update is exchanged quantized
    local      ///< nothing is exchanged
  };

  /// The number of steps of each kind.
  struct step_counts {
    std::uint64_t refresh = 0;
    std::uint64_t gradient = 0;
    std::uint64_t update = 0;
    std::uint64_t local = 0;
    kind last = kind::local;  ///< of the last step

    std::uint64_t codes() const noexcept { return gradient + update; }
  };

  traffic_plan(std::span<const tensor_shape> tensors, const options_type& options, const world& world)
      : ranks_(world.ranks),
        stored_(world.stored),
        is_quantized_(world.ranks > 1 || options.compress_single_rank),
        compressor_(options.compressor),
        dense_compressor_(options.dense_compressor),
        variance_schedule_(options.variance_schedule),
        local_schedule_(options.local_schedule),
        dense_(detail::dense_traffic(tensors, options, world)),
        quantized_(
            detail::quantized_traffic(detail::wire_of(tensors, options.compressor, world.ranks), world, is_quantized_)),
        clip_(detail::clip_traffic(options, world)),
        clips_(std::isfinite(options.max_gradient_norm)) {
    detail::validate_policy(options.variance_schedule);
    detail::validate_policy(options.local_schedule);
    detail::validate_policy(options.compressor);
    detail::validate_policy(options.dense_compressor);
  }

  /// Counts of steps 1 … steps, from the schedules.
  step_counts counts(std::uint64_t steps) const {
    step_counts all;
    typename VarianceSchedule::state_type variance{};
    typename LocalSchedule::state_type local{};
    bool is_frozen = false;
    for (std::uint64_t tau = 2; tau < steps + 2; ++tau) {  // τ = t + 1
      if (is_frozen) {
        const bool exchanges = local_schedule_.exchanges(local, tau);
        local_schedule_.advance(local);
        all.last = exchanges ? kind::update : kind::local;
        ++(exchanges ? all.update : all.local);
      } else {
        const bool refreshes = variance_schedule_.refreshes(variance, tau);
        variance_schedule_.advance(variance, tau);
        is_frozen = variance_schedule_.ends_after(tau);
        all.last = refreshes ? kind::refresh : kind::gradient;
        ++(refreshes ? all.refresh : all.gradient);
      }
    }
    return all;
  }

  /// Traffic of step t = 1, 2, …. Walks through the schedules up to t.
  traffic_counts step(std::uint64_t t) const {
    const kind last = counts(t).last;
    if (last == kind::refresh) return dense_;
    traffic_counts counts = clip_;
    if (last != kind::local) detail::add_times(counts, quantized_, 1);
    return counts;
  }

  /// Traffic of steps 1 … steps.
  traffic_counts total(std::uint64_t steps) const {
    const step_counts taken = counts(steps);
    traffic_counts sum;
    detail::add_times(sum, dense_, taken.refresh);
    detail::add_times(sum, quantized_, taken.codes());
    detail::add_times(sum, clip_, taken.codes() + taken.local);
    return sum;
  }

  /// Bytes of memory traffic per parameter and step, the mean of steps 1 … steps.
  double memory_bytes(std::uint64_t steps) const {
    if (steps == 0) return 0.0;
    const step_counts taken = counts(steps);
    using passes = detail::zero_one_passes;
    const double local_update =
        passes::local_memory_bytes(is_quantized_, stored_) + detail::own_clip_bytes(clips_, stored_, true);
    const double bytes = static_cast<double>(taken.refresh) *
                             passes::refresh_memory_bytes(dense_compressor_, ranks_, is_quantized_, clips_, stored_) +
                         static_cast<double>(taken.codes()) * detail::own_clip_bytes(clips_, stored_) +
                         static_cast<double>(taken.gradient) *
                             passes::gradient_memory_bytes<ErrorFeedback>(compressor_, ranks_, is_quantized_, stored_) +
                         static_cast<double>(taken.update) *
                             passes::update_memory_bytes<ErrorFeedback>(compressor_, ranks_, is_quantized_, stored_) +
                         static_cast<double>(taken.local) * local_update;
    return bytes / static_cast<double>(steps);
  }

 private:
  int ranks_;
  storage_bytes stored_;
  bool is_quantized_;
  Compressor compressor_;
  DenseCompressor dense_compressor_;
  VarianceSchedule variance_schedule_;
  LocalSchedule local_schedule_;
  traffic_counts dense_;
  traffic_counts quantized_;
  traffic_counts clip_;
  bool clips_;
};

}  // namespace slamb::plan
