// The upper half of a float: sign, eight bits of exponent, seven of mantissa. A type of parameters, gradients and stored errors.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// A brain floating-point number, for storage: it has no arithmetic.
struct bfloat16 {
  std::uint16_t bits;
};

static_assert(sizeof(bfloat16) == 2);

namespace detail {

/// The sixteen bits of x as a bfloat16: to nearest, ties to even. Finite numbers stay finite; infinities and NaN are kept.
template <class Real>
SLAMB_ELEMENT word_of<Real> bfloat16_bits(const Real& x) {
  using word = word_of<Real>;
  const word magnitude = as_word(x) & word(0x7FFFFFFFU);
  const word rounded = (magnitude + word(0x7FFFU) + ((magnitude >> 16) & word(1U))) >> 16;
  const word finite = select(rounded < word(0x7F80U), rounded, word(0x7F7FU));
  const word other = select(word(0x7F800000U) < magnitude, word(0x7FC0U), word(0x7F80U));
  return select(magnitude < word(0x7F800000U), finite, other) | ((as_word(x) >> 16) & word(0x8000U));
}

/// The value of a bfloat16 with these bits.
template <class Word>
SLAMB_ELEMENT auto real_of_bfloat16_bits(const Word& bits) {
  return as_real(bits << 16);
}

/// The bfloat16 nearest to x.
SLAMB_HOST_DEVICE inline bfloat16 to_bfloat16(float x) { return {static_cast<std::uint16_t>(bfloat16_bits(x))}; }

/// The value of x, exact.
SLAMB_HOST_DEVICE inline float to_float(bfloat16 x) { return real_of_bfloat16_bits(std::uint32_t{x.bits}); }

}  // namespace detail
}  // namespace slamb
