// The quantizers int8 and int4: a small integer for each element, on equally spaced levels up to the largest value of a block,
// rounded at random.
#pragma once

#include <bit>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// Sends x as q/L · max|x|, with L = 2^(Bits−1) − 1 and the maximum over a block. q is one of the two integers next to
/// L x/max|x|, drawn so that the mean is x.
///
/// Zero and the block's largest value are exact. Draws have 16 bits, so the mean is within 2^-17 of a level of x.
///
/// *Cost*: Bits/8 bytes an element, and 4 a block. Widths other than 2, 4 and 8 are packed code by code, which takes longer.
/// *Determinism*: a function of x, the scale and the draw.
/// *Reference*: QSGD (Alistarh et al., NeurIPS 2017), section 3, with the maximum instead of the norm.
template <int Bits>
struct integer {
  static_assert(Bits >= 2 && Bits <= 8, "slamb: integers have 2 to 8 bits");

  std::uint32_t block = 128;  ///< consecutive elements that share a scale: a power of two, 16 … 1024
  std::uint64_t seed = 0;     ///< of the random draws; must be equal on all ranks

  static constexpr int bits_per_element = Bits;
  static constexpr segment_scale scale = segment_scale::max;
  static constexpr bool is_stochastic = true;

  static constexpr std::uint32_t levels = (1U << (Bits - 1)) - 1U;  ///< L

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(std::has_single_bit(block) && block >= 16 && block <= 1024, "integer's block", block,
                       "a power of two in [16, 1024]");
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("integer's block", block);
    fields.add_word("integer's seed", seed);
  }

  /// L + q, with |q| = ⌊L |x|/s + uniform⌋. Computed with integers in units of 2^-17, so that no sum is rounded or fused.
  template <class Real>
  SLAMB_ELEMENT word_of<Real> encode(const Real& x, const Real& s, const Real& uniform) const {
    using word = word_of<Real>;
    const Real part = minimum(Real(1.0F), absolute(x) / select(Real(0.0F) < s, s, Real(1.0F)));
    const word q = (to_word(part * Real(0x1p17F * float(levels))) + to_word(Real(0x1p17F) * uniform)) >> 17;
    return select(x < Real(0.0F), word(levels) - q, word(levels) + q);
  }

  /// q/L · s.
  template <class Real>
  SLAMB_ELEMENT Real decode(const word_of<Real>& code, const Real& s) const {
    constexpr float step = 1.0F / float(levels);
    static_assert(step * float(levels) == 1.0F, "slamb: the largest value of a block must decode to itself");
    return (to_real(code) - Real(float(levels))) * Real(step) * s;
  }
};

using int8 = integer<8>;
using int4 = integer<4>;

static_assert(capability::stochastic_quantizer<int8> && capability::stochastic_quantizer<int4> &&
              capability::stochastic_quantizer<integer<3>> && capability::stochastic_quantizer<integer<2>>);

}  // namespace slamb
