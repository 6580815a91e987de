// A sparsifier followed by a quantizer: selected elements are sent quantized.
#pragma once

#include <concepts>
#include <stdexcept>
#include <type_traits>

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Sends the elements that `Sparsifier` selects, quantized by `Quantizer`. `slamb<chain<random_k<>, int8>>` is SLAMB
/// with a payload of bytes.
///
/// The selected elements of all tensors, end to end, are one signal. The quantizer has one scale for all of it or one for each
/// block. Tensors that are always exchanged dense are quantized too. The compression error of the signal is kept with the
/// elements that are not selected: in the local momentum, or in the worker error. The compression error of the mean is dropped,
/// so the quantizer should be right on average, as int8, int4 and natural are.
///
/// *Cost*: `Quantizer::bits_per_element` for each element that `Sparsifier` selects, in each of two phases.
/// *Determinism*: see `Sparsifier` and `Quantizer`.
template <class Sparsifier, class Quantizer>
struct chain {
  static_assert(detail::selects<Sparsifier> && quantizer<Quantizer>,
                "slamb: a chain is of a sparsifier and a quantizer, in this order: chain<random_k<>, int8>");

  Sparsifier sparsifier{};
  Quantizer quantizer{};

  /// @throws std::invalid_argument
  void validate() const {
    if constexpr (requires { sparsifier.validate(); }) sparsifier.validate();
    if constexpr (requires { quantizer.validate(); }) quantizer.validate();
    if constexpr (requires { quantizer.scales; })
      if (quantizer.scales != scale_sharing::fused)
        throw std::invalid_argument(
            "slamb: chain's quantizer has scales = per_tensor, but it must be fused, because the selected elements of "
            "all tensors form one signal");
    if constexpr (requires { quantizer.zero_aware; })
      if (quantizer.zero_aware)
        throw std::invalid_argument(
            "slamb: chain's quantizer has zero_aware = true, which needs a variance for each code; it must be false");
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    if constexpr (requires { sparsifier.describe(fields); }) sparsifier.describe(fields);
    if constexpr (requires { quantizer.describe(fields); }) quantizer.describe(fields);
  }
};

}  // namespace slamb
