// The quantizers bf16 and fp16: sixteen bits an element, as bfloat16 or as IEEE half precision.
#pragma once

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

namespace detail {

/// The members that both have.
struct floating_facts {
  static constexpr int bits_per_element = 16;
  static constexpr segment_scale scale = segment_scale::none;
};

}  // namespace detail

/// Sends bfloat16 numbers: a float's range, and eight bits of precision. Rounds to nearest, ties to even. Numbers beyond the
/// largest finite one (±3.39e38) become the largest.
///
/// *Cost*: 2 bytes an element.
/// *Determinism*: a function of x.
struct bf16 : detail::floating_facts {
  template <class Real>
  SLAMB_ELEMENT word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    return detail::bfloat16_bits(x);
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const word_of<Real>& code, const Real& /*scale*/) const {
    return detail::real_of_bfloat16_bits(code);
  }
};

/// Sends IEEE 754 binary16 numbers: eleven bits of precision from 2^-14 on, steps of 2^-24 below. Rounds to nearest, ties to
/// even. Numbers beyond ±65504 become ±65504.
///
/// *Cost*: 2 bytes an element.
/// *Determinism*: a function of x.
struct fp16 : detail::floating_facts {
  template <class Real>
  SLAMB_ELEMENT word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    using word = word_of<Real>;
    const Real magnitude = absolute(x);
    const word bits = as_word(magnitude);
    const word rounded = (bits + word(0xFFFU) + ((bits >> 13) & word(1U))) >> 13;
    const word normal = select(rounded < word(rebias + largest), rounded - word(rebias), word(largest));
    // The sum is rounded to a multiple of 2^-24, the step of numbers about 1/2.
    const word subnormal = as_word(magnitude + Real(0.5F)) - word(0x3F000000U);
    return select(magnitude < Real(0x1p-14F), subnormal, normal) | ((as_word(x) >> 16) & word(0x8000U));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const word_of<Real>& code, const Real& /*scale*/) const {
    using word = word_of<Real>;
    const word bits = code & word(0x7FFFU);
    const Real subnormal = to_real(bits) * Real(0x1p-24F);
    const Real magnitude = select(bits < word(0x400U), subnormal, as_real((bits + word(rebias)) << 13));
    return as_real(as_word(magnitude) | ((code & word(0x8000U)) << 16));
  }

 private:
  static constexpr std::uint32_t rebias = (127U - 15U) << 10U;  // between the exponents of the two formats
  static constexpr std::uint32_t largest = 0x7BFFU;             // 65504
};

static_assert(quantizer<bf16> && quantizer<fp16> && capability::encodes_without_scale<bf16> &&
              capability::encodes_without_scale<fp16>);

}  // namespace slamb
