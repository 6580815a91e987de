// The plan of 1-bit Adam and 1-bit LAMB: dense gradients during the warm-up, then the quantized momentum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/one_bit.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::plan {

/// The plan of `one_bit_adam` and `one_bit_lamb`, with a warm-up of known length, such as `fixed_warm_up`.
template <class Compressor, class ErrorFeedback, class TrustRatio, class WarmUp, class DenseCompressor>
class traffic_plan<one_bit_options<Compressor, ErrorFeedback, TrustRatio, WarmUp, DenseCompressor>> {
  static_assert(
      requires(const WarmUp& w) { w.steps; },
      "slamb: a plan of one_bit_adam or one_bit_lamb needs a warm-up with a member `steps`, because the end of an "
      "automatic warm-up depends on the gradients; plan with the fixed_warm_up that you expect");

 public:
  using options_type = one_bit_options<Compressor, ErrorFeedback, TrustRatio, WarmUp, DenseCompressor>;

  traffic_plan(std::span<const tensor_shape> tensors, const options_type& options, const world& world)
      : ranks_(world.ranks),
        stored_(world.stored),
        is_quantized_(world.ranks > 1 || options.compress_single_rank),
        compressor_(options.compressor),
        dense_compressor_(options.dense_compressor),
        warm_up_steps_(options.warm_up.steps),
        dense_(detail::dense_traffic(tensors, options, world)),
        compressed_(
            detail::quantized_traffic(detail::wire_of(tensors, options.compressor, world.ranks), world, is_quantized_)),
        clips_(std::isfinite(options.max_gradient_norm)) {
    detail::add_times(compressed_, detail::clip_traffic(options, world), 1);
    detail::validate_policy(options.warm_up);
    detail::validate_policy(options.compressor);
    detail::validate_policy(options.dense_compressor);
  }

  /// Traffic of step t = 1, 2, ….
  traffic_counts step(std::uint64_t t) const { return t <= warm_up_steps_ ? dense_ : compressed_; }

  /// Traffic of steps 1 … steps.
  traffic_counts total(std::uint64_t steps) const {
    traffic_counts counts;
    const std::uint64_t dense = std::min(steps, warm_up_steps_);
    detail::add_times(counts, dense_, dense);
    detail::add_times(counts, compressed_, steps - dense);
    return counts;
  }

  /// Bytes of memory traffic per parameter and step, the mean of steps 1 … steps.
  double memory_bytes(std::uint64_t steps) const {
    const double dense = detail::gradient_step_bytes<TrustRatio, no_error_feedback>(
        dense_compressor_, ranks_, is_quantized_, true, clips_, stored_);
    const double compressed = detail::own_clip_bytes(clips_, stored_) +
                              detail::one_bit_passes<TrustRatio>::template memory_bytes<ErrorFeedback>(
                                  compressor_, ranks_, is_quantized_, stored_);
    const double part =
        steps == 0 ? 0.0 : static_cast<double>(std::min(steps, warm_up_steps_)) / static_cast<double>(steps);
    return part * dense + (1.0 - part) * compressed;
  }

 private:
  int ranks_;
  storage_bytes stored_;
  bool is_quantized_;
  Compressor compressor_;
  DenseCompressor dense_compressor_;
  std::uint64_t warm_up_steps_;
  traffic_counts dense_;
  traffic_counts compressed_;
  bool clips_;
};

}  // namespace slamb::plan
