// SLAMB's ParameterSync by quantized differences: ranks exchange, in a few bits, how far they have moved from a common point.
#pragma once

#include <cstdint>

#include "slamb/compressor/four_levels.hpp"
#include "slamb/core/concepts.hpp"

namespace slamb {

namespace detail {

// Tensors move by steps of different sizes.
template <class Q>
constexpr Q with_scales_of_tensors() {
  Q all{};
  if constexpr (requires { all.scales; }) all.scales = scale_sharing::per_tensor;
  return all;
}

}  // namespace detail

namespace sync {

/// Exchanges the differences of the ranks' parameters p_i from a common point, which is equal on all ranks, bit for bit. Each
/// exchange moves that point by the mean of what the ranks have sent:
///
///     d_i = p_i − ref;   q_i = Q(d_i);   s = mean of q_i;   s' = M(s + e);   e ← s + e − s'
///     ref ← ref + s';   p_i ← ref + (d_i − q_i)
///
/// The compression error of Q stays in p_i, so a rank has no error buffer. The exchange preserves the mean of all p_i, plus e, for
/// every Q and M.
///
/// The common point is first that of the parameters before the first step, which are equal on all ranks. Later, replace parameters
/// by `broadcast_parameters()`. A tensor without a gradient is not exchanged. `tensor_options::rows` has no effect here. Parameters of
/// 16 bits without master copies are rounded in every exchange.
///
/// *Memory*: 4 bytes of state a parameter, and 4/N for e, the compression error of the mean of this rank's chunk.
/// *Cost*: 24 bytes of memory traffic a parameter and exchange, 8 more if Q encodes with a scale of more than a block,
/// and the codes. On the wire: the bits of Q and of M, each (N − 1)/N times, by two collectives for any number of
/// tensors.
/// *Determinism*: the same bits from run to run; ref is equal on all ranks after each exchange.
///
/// @tparam Quantizer      Q, of the differences
/// @tparam MeanQuantizer  M, of their mean; the coarser, the later the mean is sent. For a Q of one bit, name a finer M
template <class Quantizer = four_levels, class MeanQuantizer = Quantizer>
struct quantized_difference {
  static_assert(
      quantizer<Quantizer> && quantizer<MeanQuantizer>,
      "slamb: sync::quantized_difference sends every element in few bits; its arguments must be quantizers, such "
      "as four_levels or int4");
  static constexpr std::int64_t default_local_steps = 2;

  Quantizer quantizer = detail::with_scales_of_tensors<Quantizer>();
  MeanQuantizer mean_quantizer = detail::with_scales_of_tensors<MeanQuantizer>();

  /// @throws std::invalid_argument
  void validate() const {
    if constexpr (requires { quantizer.validate(); }) quantizer.validate();
    if constexpr (requires { mean_quantizer.validate(); }) mean_quantizer.validate();
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    if constexpr (requires { quantizer.describe(fields); }) quantizer.describe(fields);
    if constexpr (requires { mean_quantizer.describe(fields); }) mean_quantizer.describe(fields);
  }
};

static_assert(parameter_sync<quantized_difference<>> && capability::sends_differences<quantized_difference<>>);

}  // namespace sync

}  // namespace slamb
