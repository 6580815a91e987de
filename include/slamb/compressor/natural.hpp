// The quantizer natural: a sign and a power of two in eight bits an element, rounded at random.
#pragma once

#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// Sends x as ±2^e, with e in −96 … 30, or as 0: one of the two neighbours of x, drawn so that the mean is x.
///
/// Powers of two and zero are exact. Between 0 and 2^-96 (1.3e-29) the draw is between these two. Beyond 2^30 (1.1e9) x becomes
/// ±2^30; error feedback corrects this if it is rare. There is no scale, so it suits signals whose elements differ by many orders
/// of magnitude. Draws have 16 bits, so the mean is within 2^-17 of the distance between the neighbours.
///
/// *Cost*: 1 byte an element.
/// *Determinism*: a function of x and the draw.
/// *Reference*: Horváth et al., "Natural compression for distributed deep learning" (arXiv 1905.10988), definition 1. There e has
/// all values of a float's exponent. Here it has 127 values, and zero has a code.
struct natural {
  std::uint64_t seed = 0;  ///< of the random draws; must be equal on all ranks

  static constexpr int bits_per_element = 8;
  static constexpr segment_scale scale = segment_scale::none;
  static constexpr bool is_stochastic = true;

  static constexpr int least_exponent = -96;          ///< code 1
  static constexpr int largest_exponent = 30;         ///< code 127
  static constexpr std::uint32_t exponent_bias = 30;  ///< a float's exponent field less the code

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add_word("natural's seed", seed);
  }

  /// Bit 7: the sign; bits 0 … 6: 0 for zero, else e + 97.
  template <class Real>
  SLAMB_ELEMENT word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& uniform) const {
    using word = word_of<Real>;
    const Real least(0x1p-96F);
    const Real magnitude = absolute(x);
    const word tiny = to_word(minimum(least, magnitude) * Real(0x1p96F) + uniform);
    // A carry out of the 23 bits of mantissa has the probability mantissa/2^23.
    const word carried = as_word(magnitude) + to_word(uniform * Real(0x1p23F));
    const word exponent = (carried >> 23) - word(exponent_bias);
    const word code = select(magnitude < least, tiny, select(exponent < word(127U), exponent, word(127U)));
    return code | ((as_word(x) >> 24) & word(0x80U));
  }

  template <class Real>
  SLAMB_ELEMENT Real decode(const word_of<Real>& code, const Real& /*scale*/) const {
    using word = word_of<Real>;
    const word exponent = code & word(0x7FU);
    const word magnitude = select(exponent == word(0U), word(0U), (exponent + word(exponent_bias)) << 23);
    return as_real(magnitude | ((code & word(0x80U)) << 24));
  }
};

static_assert(capability::stochastic_quantizer<natural>);
static_assert(natural::exponent_bias + 1 == 127 + natural::least_exponent);
static_assert(natural::exponent_bias + 127 == 127 + natural::largest_exponent);

}  // namespace slamb
