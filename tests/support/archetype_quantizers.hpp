// Quantizers as a user might write them: their codes, levels and facts occur in none of the library's.
#pragma once

#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace test_support {

struct quantizer_facts {};

/// Decodes to 0 or ±1¼ times the root mean square. It needs the scale before it encodes. Of its two bits it uses the codes 0, 1
/// (minus) and 3 (plus).
struct archetype_ternary : quantizer_facts {
  static constexpr int bits_per_element = 2;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::l2;

  slamb::scale_sharing scales = slamb::scale_sharing::fused;

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& s, const Real& /*uniform*/) const {
    using slamb::absolute, slamb::select;
    using word = slamb::word_of<Real>;
    return select(absolute(x) < Real(0.75F) * s, word(0U), select(x < Real(0.0F), word(1U), word(3U)));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::as_real, slamb::as_word, slamb::select;
    using word = slamb::word_of<Real>;
    const word magnitude = as_word(Real(1.25F) * s);
    const word sign_bit = ((code & word(2U)) ^ word(2U)) << 30;
    return as_real(select(code == word(0U), word(0U), magnitude | sign_bit));
  }
};

/// Levels −7 … 8 eighths of the largest magnitude, chosen at random between two neighbours: asymmetric, and the only stochastic
/// codes that need the scale of the whole signal first.
struct archetype_levels : quantizer_facts {
  static constexpr int bits_per_element = 4;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::max;
  static constexpr bool is_stochastic = true;

  slamb::scale_sharing scales = slamb::scale_sharing::fused;
  std::uint64_t seed = 0;

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& s, const Real& uniform) const {
    using slamb::maximum, slamb::minimum, slamb::select, slamb::to_word;
    const Real level = x / select(Real(0.0F) < s, s, Real(1.0F)) * Real(8.0F) + Real(7.0F);
    return to_word(minimum(Real(15.0F), maximum(Real(0.0F), level) + uniform));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::to_real;
    return (to_real(code) - Real(7.0F)) * Real(0.125F) * s;
  }
};

/// ±½ or ±1½ times the mean magnitude of a block. If told so, the mean is over elements whose variance is not 0.
struct archetype_blocks : quantizer_facts {
  static constexpr int bits_per_element = 2;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::l1;

  std::uint32_t block = 32;
  bool zero_aware = false;

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& s, const Real& /*uniform*/) const {
    using slamb::absolute, slamb::select;
    using word = slamb::word_of<Real>;
    return select(absolute(x) < s, word(0U), word(2U)) | select(x < Real(0.0F), word(1U), word(0U));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::as_real, slamb::as_word, slamb::to_real;
    const Real magnitude = (Real(0.5F) + to_real(code >> 1)) * s;
    return as_real(as_word(magnitude) | (code << 31));
  }
};

/// A float as it is: nothing is lost, so errors stay 0.
struct archetype_floats : quantizer_facts {
  static constexpr int bits_per_element = 32;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    using slamb::as_word;
    return as_word(x);
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& /*scale*/) const {
    using slamb::as_real;
    return as_real(code);
  }
};

/// A wire format of its own: seven levels, −3 … 3 quarters of a power of two, in three bits; and the exponent of that power, the
/// block's scale, in a byte.
struct archetype_octal : quantizer_facts {
  static constexpr int bits_per_element = 3;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::max;

  std::uint32_t block = 32;

  /// The least power of two that is not below s, as its exponent + 127; 0 for 0.
  SLAMB_ELEMENT std::uint8_t encode_scale(float s) const {
    const std::uint32_t bits = slamb::as_word(s);
    return static_cast<std::uint8_t>((bits >> 23U) + ((bits & 0x7FFFFFU) == 0U ? 0U : 1U));
  }
  SLAMB_ELEMENT float decode_scale(std::uint8_t byte) const { return slamb::as_real(std::uint32_t{byte} << 23U); }

  template <class Real>
  SLAMB_ELEMENT slamb::word_of<Real> encode(const Real& x, const Real& s, const Real& /*uniform*/) const {
    using slamb::maximum, slamb::minimum, slamb::select, slamb::to_word;
    const Real level = x / select(Real(0.0F) < s, s, Real(1.0F)) * Real(4.0F);
    return to_word(minimum(Real(3.0F), maximum(Real(-3.0F), level)) + Real(4.5F));
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const slamb::word_of<Real>& code, const Real& s) const {
    using slamb::to_real;
    return (to_real(code) - Real(4.0F)) * Real(0.25F) * s;
  }
};

static_assert(slamb::capability::sends_scales_in_bytes<archetype_octal>);
static_assert(slamb::quantizer<archetype_ternary> && !slamb::capability::encodes_without_scale<archetype_ternary>);
static_assert(slamb::capability::stochastic_quantizer<archetype_levels> &&
              !slamb::capability::encodes_without_scale<archetype_levels>);
static_assert(slamb::quantizer<archetype_blocks>);
static_assert(slamb::quantizer<archetype_floats> && slamb::capability::encodes_without_scale<archetype_floats>);

}  // namespace test_support
