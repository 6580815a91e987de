// Rounds floats to sixteen bits: to nearest, or up and down by chance, so that the mean is right.
#pragma once

#include <cstdint>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail {

/// The sixteen bits of x as a bfloat16: to nearest, ties to even, as IEEE 754 defines; too large numbers become infinity.
template <class Real>
SLAMB_ELEMENT word_of<Real> nearest_bfloat16_bits(const Real& x) {
  using word = word_of<Real>;
  const word bits = as_word(x);
  const word magnitude = bits & word(0x7FFFFFFFU);
  const word rounded = (bits + word(0x7FFFU) + ((bits >> 16) & word(1U))) >> 16;
  return select(word(0x7F800000U) < magnitude, ((bits >> 16) & word(0x8000U)) | word(0x7FC0U), rounded);
}

/// The sixteen bits of one of the two bfloat16 next to x: the upper one with a probability of x's distance from the lower one, in
/// units of their difference. Exact: E[rounded x] = x. Finite numbers stay finite.
///
/// @param draw  uniform in 0 … 2^16 − 1
template <class Real>
SLAMB_ELEMENT word_of<Real> stochastic_bfloat16_bits(const Real& x, const word_of<Real>& draw) {
  using word = word_of<Real>;
  const word magnitude = as_word(x) & word(0x7FFFFFFFU);
  const word moved = (magnitude + draw) >> 16;
  const word finite = select(moved < word(0x7F80U), moved, word(0x7F7FU));
  const word other = select(word(0x7F800000U) < magnitude, word(0x7FC0U), word(0x7F80U));
  return select(magnitude < word(0x7F800000U), finite, other) | ((as_word(x) >> 16) & word(0x8000U));
}

/// As `stochastic_bfloat16_bits`, for halves. Below 2^-14, where halves are 2^-24 apart, the mean is right to 2^-17 of that
/// distance. Numbers below 2^16 stay finite.
template <class Real>
SLAMB_ELEMENT word_of<Real> stochastic_half_bits(const Real& x, const word_of<Real>& draw) {
  using word = word_of<Real>;
  const word magnitude = as_word(x) & word(0x7FFFFFFFU);
  const word moved = (magnitude + (draw >> 3) - word(0x38000000U)) >> 13;
  const word below = select(moved < word(0x7BFFU), moved, word(0x7BFFU));
  const word normal = select(magnitude < word(0x47800000U), below, word(0x7C00U));
  const word small = select(magnitude < word(0x38800000U), magnitude, word(0U));
  const Real steps = Real(as_real(small)) * Real(0x1p24F);
  const word whole = to_word(steps);
  const Real rest = steps - Real(to_real(whole));
  const Real uniform = Real(to_real(draw)) * Real(0x1p-16F) + Real(0x1p-17F);
  const word subnormal = whole + select(uniform < rest, word(1U), word(0U));
  const word number = select(magnitude < word(0x38800000U), subnormal, normal);
  return select(word(0x7F800000U) < magnitude, word(0x7E00U), number) | ((as_word(x) >> 16) & word(0x8000U));
}

}  // namespace slamb::detail
