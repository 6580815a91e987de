// A sparsifier and a quantizer in turn: only what is selected is sent, and that in few bits.
#pragma once

#include <concepts>
#include <stdexcept>
#include <type_traits>

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Sends what `Sparsifier` selects, encoded by `Quantizer`: `slamb<Communicator, chain<random_k<>, int8>>` is SLAMB with a
/// payload of bytes.
///
/// The selected elements of all tensors, one after another, are one signal: the quantizer's scales are for all of it or for
/// blocks of it, and tensors that are always exchanged whole are encoded as well. What encoding loses stays where what is not
/// selected stays: in the local momentum, or in the worker's error. What the mean loses when it is encoded is lost, so the
/// quantizer should be right on average: int8, int4 and natural are.
///
/// *Cost*: `Quantizer::bits_per_element` for each element that `Sparsifier` selects, in each of two phases.
/// *Determinism*: that of its parts.
template <class Sparsifier, quantizer Quantizer>
struct chain {
  Sparsifier sparsifier{};
  Quantizer quantizer{};

  /// @throws std::invalid_argument
  void validate() const {
    if constexpr (requires { sparsifier.validate(); }) sparsifier.validate();
    if constexpr (requires { quantizer.validate(); }) quantizer.validate();
    if constexpr (requires { quantizer.scales; })
      if (quantizer.scales != scale_sharing::fused)
        throw std::invalid_argument(
            "slamb: chain's quantizer has scales = per_tensor, but what a sparsifier selects is one signal; "
            "it must be fused");
    if constexpr (requires { quantizer.zero_aware; })
      if (quantizer.zero_aware)
        throw std::invalid_argument(
            "slamb: chain's quantizer has zero_aware = true, which needs a variance for each code; it must be false");
  }

  /// Names what must be the same on all ranks.
  template <class Facts>
  void describe(Facts& facts) const {
    if constexpr (requires { sparsifier.describe(facts); }) sparsifier.describe(facts);
    if constexpr (requires { quantizer.describe(facts); }) quantizer.describe(facts);
  }
};

namespace detail {

/// The part of a compressor that selects.
template <class C>
constexpr auto& sparsifier_of(C& compressor) noexcept {
  if constexpr (capability::chained<std::remove_const_t<C>>)  // a const type is not copyable
    return compressor.sparsifier;
  else
    return compressor;
}

}  // namespace detail
}  // namespace slamb
