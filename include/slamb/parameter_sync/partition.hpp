// The partition of LAMB's and AdamW's state: each rank updates a part of the parameters, and sends it to all.
#pragma once

#include <type_traits>

#include "slamb/compressor/no_compressor.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/parameter_sync/quantized_difference.hpp"

namespace slamb::sync {

/// Each of N ranks keeps m and v of its own chunk of the parameters alone, and updates it by the mean of the ranks' gradients. Then it
/// sends the chunk to all ranks, as floats, or in codes of a Quantizer Q:
///
///     P: the exact parameters of the chunk;   p: those that all ranks have;   first p = P
///     P ← P − γ φ u;   q = Q(P − p);   p ← p + q
///
/// What Q does not say stays in P − p, so no further error buffer is needed, and it does not grow.
///
/// *Memory*: 8/N bytes of state a parameter, and 4/N for P, if parameters are sent in codes or have 16 bits. The buffers of the exchange.
/// *Cost*: on the wire, phase 1: gradients to the owners of their chunks, by one all_to_all: 4 (N − 1)/N bytes a parameter, or
/// the bits of the Compressor. Phase 2: one all_gather of 4 (N − 1)/N bytes a parameter, or of the bits of Q. LAMB's norms and
/// the norm of a clipped gradient take an all_gather of a few doubles for each tensor.
/// *Determinism*: the same bits from run to run, and p on all ranks.
/// *Reference*: ZeRO (arXiv 1910.02054), stage 1. Deviations: quantizers of both phases, and P.
///
/// @tparam Quantizer  Q; no_compressor: parameters are sent as floats
template <class Quantizer = no_compressor>
struct partition {
  static_assert(
      quantizer<Quantizer> || requires { requires Quantizer::selects_all; },
      "slamb: sync::partition sends every parameter; its argument must be a quantizer, such as int8 or "
      "bf16, or no_compressor");
  static constexpr bool partitions_state = true;

  Quantizer quantizer = detail::with_scales_of_tensors<Quantizer>();

  /// @throws std::invalid_argument
  void validate() const {
    if constexpr (requires { quantizer.validate(); }) quantizer.validate();
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    if constexpr (requires { quantizer.describe(fields); }) quantizer.describe(fields);
  }
};

static_assert(capability::partitions_state<partition<>>);

}  // namespace slamb::sync
