// The quantizer sign: one bit an element, its sign, times a shared scale.
#pragma once

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// Sends x as its sign times a scale: ±√(Σx²/n) (l2, as in the papers), or ±Σ|x|/n (l1, which has the least mean square error).
/// The sign is + for x ≥ 0.
///
/// It cannot represent zero. An element that is always 0, as in embedding rows that no batch has used, would become ±scale.
/// `zero_aware` makes elements with variance 0 inactive: they are left out of the scale, the result and the errors.
///
/// *Cost*: 1/8 byte an element.
/// *Determinism*: the code depends on the element alone, not on the scale.
/// *Reference*: 1-bit Adam (arXiv 2102.02888), 1-bit LAMB (arXiv 2104.06069); l1: Bernstein et al., signSGD, ICML 2018.
template <segment_scale Scale = segment_scale::l2>
struct basic_sign {
  static_assert(Scale == segment_scale::l2 || Scale == segment_scale::l1,
                "slamb: the scale of signs is segment_scale::l2 or segment_scale::l1");

  scale_sharing scales = scale_sharing::fused;  ///< per_tensor is better if tensors differ in size
  bool zero_aware = false;                      ///< leaves out elements whose variance is 0

  static constexpr int bits_per_element = 1;
  static constexpr segment_scale scale = Scale;
  static constexpr bool encodes_without_scale = true;
  static constexpr bool keeps_sign = true;

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("sign's scales (0: fused, 1: per tensor)", static_cast<double>(scales == scale_sharing::per_tensor));
    fields.add("sign's zero_aware", static_cast<double>(zero_aware));
  }

  /// 1 if x ≥ 0, which includes −0.0; else 0.
  template <class Real>
  SLAMB_ELEMENT word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    using word = word_of<Real>;
    return select(x < Real(0.0F), word(0U), word(1U));
  }

  /// ±s.
  template <class Real>
  SLAMB_ELEMENT Real decode(const word_of<Real>& code, const Real& s) const {
    using word = word_of<Real>;
    return as_real(as_word(s) ^ ((code ^ word(1U)) << 31));  // the sign bit where the code is 0
  }
};

/// The sign with an l2 scale.
using sign = basic_sign<>;

static_assert(quantizer<sign> && capability::encodes_without_scale<sign>);
static_assert(quantizer<basic_sign<segment_scale::l1>>);

}  // namespace slamb
