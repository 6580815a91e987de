// Numbers in eight bits, in blocks that share a scale: the dynamic maps of arXiv 2110.02861, and rounding to them by chance.
// docs/algorithms/precision.md, "Moments in fewer bits".
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail {

/// Elements that share a scale.
inline constexpr std::uint32_t code_block = 256;

/// Eight numbers.
struct eight_floats {
  float of[8];
};

/// Table::all().of[i]; i is below 8. There are overloads for vectors.
template <class Table>
SLAMB_ELEMENT float one_of_eight(std::uint32_t i, Table /*table*/) {
  constexpr eight_floats all = Table::all();  // chosen from constants, without memory
  const float low = (i & 2U) != 0 ? ((i & 1U) != 0 ? all.of[3] : all.of[2]) : ((i & 1U) != 0 ? all.of[1] : all.of[0]);
  const float high = (i & 2U) != 0 ? ((i & 1U) != 0 ? all.of[7] : all.of[6]) : ((i & 1U) != 0 ? all.of[5] : all.of[4]);
  return (i & 4U) != 0 ? high : low;
}

/// The map from codes to numbers. Code 0 is 0. Code j > 0 is 10^(L − top) (0.1 + 0.9 ((j + ½)/2^L − 1)), with L = ⌊log2 j⌋ from 0 to
/// `top`: in each power of ten, 2^L numbers at equal distances. The signed map has seven such bits and a sign.
template <bool Signed>
struct dynamic_map {
  static constexpr int top = Signed ? 6 : 7;
  static constexpr std::uint32_t last = Signed ? 127 : 255;              ///< the code of the largest number
  static constexpr float largest = Signed ? 0.99296875F : 0.996484375F;  ///< the number of `last`

  /// The number of a code.
  template <class Real>
  static SLAMB_ELEMENT Real number_of(const word_of<Real>& code) {
    using word = word_of<Real>;
    const word magnitude = code & word(last);
    const word bits = as_word(Real(to_real(magnitude)) + Real(0.5F));
    const Real mantissa(as_real((bits & word(0x007FFFFFU)) | word(0x3F800000U)));
    const Real number = (Real(0.9F) * (mantissa - Real(1.0F)) + Real(0.1F)) *
                        Real(one_of_eight(((bits >> 23) - word(127U)) & word(7U), sizes()));
    const Real known = select(magnitude == word(0U), Real(0.0F), number);
    if constexpr (Signed)
      return Real(as_real(as_word(known) | ((code & word(0x80U)) << 24)));
    else
      return known;
  }

  /// The code of one of the two numbers next to `x`/scale, by chance, so that the mean is right to 2^-13 of their distance. Numbers
  /// of the map stay as they are. In the unsigned map no number above 0 becomes 0, because it is divided by.
  ///
  /// @param per_scale  1/scale; |x|/scale is at most `largest`
  /// @param draw       uniform in 0 … 2^16 − 1
  template <class Real>
  static SLAMB_ELEMENT word_of<Real> code_of(const Real& x, const Real& per_scale, const word_of<Real>& draw) {
    using word = word_of<Real>;
    using ::slamb::maximum;
    using ::slamb::minimum;
    const Real exact = place_of(Real(as_real(as_word(x) & word(0x7FFFFFFFU))) * per_scale);
    const Real place = (exact + Real(3072.0F)) - Real(3072.0F);  // a multiple of 2^-12, so whole for numbers of the map
    const Real uniform = Real(to_real(draw)) * Real(0x1p-16F);
    const Real moved = minimum(place + uniform, Real(static_cast<float>(last)));
    if constexpr (Signed) return to_word(moved) | ((as_word(x) >> 24) & word(0x80U));
    constexpr float large = 0x1p127F;
    const Real least = minimum((x * Real(large)) * Real(large), Real(1.0F));  // 1, or 0 for x = 0
    return to_word(maximum(moved, least));
  }

 private:
  // By L: the power of ten, where the next L begins; its reciprocal; and the distance of two numbers by that in front of the first.
  struct sizes {
    SLAMB_HOST_DEVICE static constexpr eight_floats all() {
      return {{Signed ? 1e-6F : 1e-7F, Signed ? 1e-5F : 1e-6F, Signed ? 1e-4F : 1e-5F, Signed ? 1e-3F : 1e-4F,
               Signed ? 1e-2F : 1e-3F, Signed ? 1e-1F : 1e-2F, Signed ? 1.0F : 1e-1F, 1.0F}};
    }
  };
  struct per_size {
    SLAMB_HOST_DEVICE static constexpr eight_floats all() {
      return {{Signed ? 1e6F : 1e7F, Signed ? 1e5F : 1e6F, Signed ? 1e4F : 1e5F, Signed ? 1e3F : 1e4F,
               Signed ? 1e2F : 1e3F, Signed ? 1e1F : 1e2F, Signed ? 1.0F : 1e1F, 1.0F}};
    }
  };
  struct before_first {
    SLAMB_HOST_DEVICE static constexpr eight_floats all() {
      return {
          {0.9F / 0.55F, 1.0F / 0.6F, 1.0F / 0.6F, 1.0F / 0.6F, 1.0F / 0.6F, 1.0F / 0.6F, 1.0F / 0.6F, 1.0F / 0.6F}};
    }
  };

  // The place of y among the codes, a real number: between the numbers of codes j and j + 1 it grows linearly from j to j + 1.
  template <class Real>
  static SLAMB_ELEMENT Real place_of(const Real& y) {
    using word = word_of<Real>;
    using ::slamb::maximum;
    using ::slamb::minimum;
    // L = ⌊log10 y⌋ + top + 1. The bits of y, as an integer, give a logarithm that is at most 0.027 too low.
    constexpr float log10_of_2 = 0.30103F;
    const Real guess = Real(to_real(as_word(y))) * Real(log10_of_2 * 0x1p-23F) +
                       Real(static_cast<float>(top + 1) - 127.0F * log10_of_2 - 0.001F);
    const word least = to_word(maximum(guess, Real(0.0F)));
    const word level = least + select(y < Real(one_of_eight(least, sizes())), word(0U), word(1U));
    // q is 0 at the first number of the level, and grows by one to the next. In front of the first number and behind the last
    // one numbers are farther apart.
    const Real first(as_real((level + word(127U)) << 23));
    const Real q = (y * Real(one_of_eight(level, per_size())) - Real(0.1F)) * (first * Real(1.0F / 0.9F)) - Real(0.5F);
    const Real before = q * Real(one_of_eight(level, before_first()));
    const Real behind = q * Real(1.0F / 3.0F) + (first - Real(1.0F)) * Real(2.0F / 3.0F);
    return first + minimum(q, minimum(before, behind));
  }
};

/// The scale of a block. If a number is not finite, so is the scale, and all numbers of the block are then lost.
/// @param magnitude  the bits of the largest magnitude
template <bool Signed>
SLAMB_ELEMENT float block_scale(std::uint32_t magnitude) {
  if (magnitude == 0 || magnitude >= 0x7F800000U) return as_real(magnitude);
  const float scale = rounded_product(as_real(magnitude), 1.0F / dynamic_map<Signed>::largest);
  return scale < 0x1p-126F ? 0x1p-126F : scale <= 0x1.fffffep127F ? scale : 0x1.fffffep127F;
}

/// 1/scale; 0 for a scale of 0, and for one that is not finite.
SLAMB_ELEMENT float per_scale(float scale) {
  if (!(scale > 0.0F && scale <= 0x1.fffffep127F)) return 0.0F;
#if defined(SLAMB_ON_DEVICE)
  return __fdiv_rn(1.0F, scale);
#else
  return 1.0F / scale;
#endif
}

}  // namespace slamb::detail
