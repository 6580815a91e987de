// The arithmetic of one element, written once for every backend.
//
// Real is float (device, reference) or a vector of floats (host); the functions use operators and those of
// core/real.hpp.
#pragma once

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/arrays.hpp"

namespace slamb::detail {

/// The values of one element that a pass works on: those of the arrays in a list.
template <class Real, class List>
struct element : fields<Real, List> {
  using real = Real;
};

/// The scalars of Adam's update that change from step to step; the same for all tensors.
struct adam_scalars {
  float one_minus_beta1 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float momentum_correction = 1.0F;   ///< 1/(1 − β1^t), or 1
  float deviation_correction = 1.0F;  ///< 1/√(1 − β2^t), or 1
  float epsilon = 0.0F;               ///< as added to the corrected √v
  float gradient_scale = 1.0F;        ///< multiplies the gradient as it is read
};

/// β x + (1 − β) y, with β x computed as x − (1 − β) x. Rounded to floats, β and 1 − β do not add up to 1, which would not fit
/// the bias corrections of the exact β. docs/algorithms/lamb.md, "In floats".
template <class Real>
SLAMB_ELEMENT Real moved_towards(const Real& x, const Real& y, float one_minus_beta) {
  return (x - Real(one_minus_beta) * x) + Real(one_minus_beta) * y;
}

/// m ← β1 m + (1 − β1) g: docs/algorithms/lamb.md (3), slamb.md (1).
template <class Element>
SLAMB_ELEMENT void update_momentum(Element& e, const adam_scalars& s) {
  using Real = typename Element::real;
  const Real gradient = e.gradient * Real(s.gradient_scale);
  e.momentum = moved_towards(e.momentum, gradient, s.one_minus_beta1);
}

/// v ← β2 v + (1 − β2) g²: docs/algorithms/lamb.md (4), slamb.md (2).
template <class Element>
SLAMB_ELEMENT void update_variance(Element& e, const adam_scalars& s) {
  using Real = typename Element::real;
  const Real gradient = e.gradient * Real(s.gradient_scale);
  e.variance = moved_towards(e.variance, gradient * gradient, s.one_minus_beta2);
}

/// m̂ / (√v̂ + ε): docs/algorithms/lamb.md (5), slamb.md (4), (5).
template <class Real>
SLAMB_ELEMENT Real adam_direction(const Real& momentum, const Real& variance, const adam_scalars& s) {
  return momentum * Real(s.momentum_correction) /
         (square_root(variance) * Real(s.deviation_correction) + Real(s.epsilon));
}

}  // namespace slamb::detail
