// IEEE 754's half precision: sign, five bits of exponent, ten of mantissa. A type of parameters and gradients.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// A half-precision number, for storage: it has no arithmetic. Its largest finite value is 65504.
struct half {
  std::uint16_t bits;
};

static_assert(sizeof(half) == 2);

namespace detail {

/// The sixteen bits of x as a half: to nearest, ties to even, as IEEE 754 defines. From 65520 on it is infinity; NaN is kept.
template <class Real>
SLAMB_ELEMENT word_of<Real> half_bits(const Real& x) {
  using word = word_of<Real>;
  const word magnitude = as_word(x) & word(0x7FFFFFFFU);
  const word rounded = (magnitude + word(0xFFFU) + ((magnitude >> 13) & word(1U)) - word(0x38000000U)) >> 13;
  const word normal = select(rounded < word(0x7C00U), rounded, word(0x7C00U));
  // Below 2^-14 halves are multiples of 2^-24, as floats from ½ on are: the sum is rounded to one of them.
  const word subnormal = as_word(Real(as_real(magnitude)) + Real(0.5F)) - word(0x3F000000U);
  const word number = select(magnitude < word(0x38800000U), subnormal, normal);
  return select(word(0x7F800000U) < magnitude, word(0x7E00U), number) | ((as_word(x) >> 16) & word(0x8000U));
}

/// The value of a half with these bits, exact. The result of as_real(word) as Real.
template <class Real, class Word>
SLAMB_ELEMENT Real real_of_half_bits(const Word& bits) {
  const Word magnitude = bits & Word(0x7FFFU);
  const Word shifted = magnitude << 13;
  const Word finite = shifted + Word(0x38000000U);
  const Word other = shifted + Word(0x70000000U);  // infinity and NaN
  const Word normal = select(magnitude < Word(0x7C00U), finite, other);
  const Word subnormal = as_word(Real(as_real(magnitude + Word(0x3F000000U))) - Real(0.5F));
  return as_real(select(magnitude < Word(0x400U), subnormal, normal) | ((bits & Word(0x8000U)) << 16));
}

}  // namespace detail
}  // namespace slamb
