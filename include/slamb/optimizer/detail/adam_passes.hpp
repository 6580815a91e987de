// The passes of Adam's update, which every recipe shares: its constants, its terms, and how it is applied.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/optimizer/detail/adam_scalars.hpp"
#include "slamb/optimizer/detail/update_bound.hpp"

namespace slamb::detail {

/// β x + (1 − β) y, with β x computed as x − (1 − β) x. Rounded to floats, β and 1 − β do not add up to 1, which would not fit
/// the bias corrections of the exact β. docs/algorithms/lamb.md, "In floats".
template <class Real>
SLAMB_ELEMENT Real moved_towards(const Real& x, const Real& y, float one_minus_beta) {
  return (x - Real(one_minus_beta) * x) + Real(one_minus_beta) * y;
}

/// g, or a finite g whose square is no float as the nearest number whose square is one. An infinite v would be NaN in the next
/// step, and with it its whole block of moments in eight bits. An infinite g becomes NaN.
template <class Real>
SLAMB_ELEMENT Real with_finite_square(const Real& gradient) {
  using ::slamb::maximum;
  using ::slamb::minimum;
  const Real largest(0x1.fffffep63F);
  return maximum(minimum(gradient, largest), -largest) + gradient * Real(0.0F);
}

/// g², at most the largest float.
template <class Real>
SLAMB_ELEMENT Real finite_square(const Real& gradient) {
  using ::slamb::minimum;
  return minimum(gradient * gradient, Real(0x1.fffffep127F));
}

/// g of an element.
template <class Element>
SLAMB_ELEMENT auto gradient_of(const Element& e, const adam_scalars& s) {
  return with_finite_square(e.gradient * typename Element::real(s.gradient_scale));
}

/// The same, if steps whose gradient fails `check_finite` are skipped, and the scale is at most 1: its square is finite.
template <class Element>
SLAMB_ELEMENT auto checked_gradient_of(const Element& e, const adam_scalars& s) {
  return e.gradient * typename Element::real(s.gradient_scale);
}

/// m ← β1 m + (1 − β1) g: docs/algorithms/lamb.md (3), slamb.md (1).
template <class Element>
SLAMB_ELEMENT void update_momentum(Element& e, const typename Element::real& gradient, const adam_scalars& s) {
  e.momentum = moved_towards(e.momentum, gradient, s.one_minus_beta1);
}
template <class Element>
SLAMB_ELEMENT void update_momentum(Element& e, const adam_scalars& s) {
  update_momentum(e, gradient_of(e, s), s);
}

/// v ← β2 v + (1 − β2) g²: docs/algorithms/lamb.md (4), slamb.md (2). A v that began late is stored as −v.
template <class Element>
SLAMB_ELEMENT void update_variance(Element& e, const typename Element::real& gradient, const adam_scalars& s) {
  e.variance = moved_towards(absolute(e.variance), gradient * gradient, s.one_minus_beta2);
}
template <class Element>
SLAMB_ELEMENT void update_variance(Element& e, const adam_scalars& s) {
  update_variance(e, gradient_of(e, s), s);
}

/// m̂ / (√v̂ + ε): docs/algorithms/lamb.md (5).
template <class Real>
SLAMB_ELEMENT Real unbounded_direction(const Real& momentum, const Real& variance, const adam_scalars& s) {
  return momentum * Real(s.momentum_correction) /
         (square_root(variance) * Real(s.deviation_correction) + Real(s.epsilon));
}

/// w = m̂ / (√v̂ + ε), within ±B: docs/algorithms/slamb.md (4), (5); update_bound.md (1).
template <class Real>
SLAMB_ELEMENT Real adam_direction(const Real& momentum, const Real& variance, const adam_scalars& s) {
  using ::slamb::maximum;
  using ::slamb::minimum;
  return maximum(minimum(unbounded_direction(momentum, variance, s), Real(s.bound)), Real(-s.bound));
}

/// True if an element that may begin late has no variance yet.
template <class Real>
SLAMB_ELEMENT auto has_no_variance(const Real& variance, const adam_scalars& s) {
  return absolute(variance) < Real(s.late_below);
}

/// The variance with which an element begins late, by its first momentum: docs/algorithms/update_bound.md (7).
template <class Real>
SLAMB_ELEMENT Real late_start(const Real& momentum, const adam_scalars& s) {
  return Real(s.one_minus_beta2) * finite_square(momentum * Real(s.inverse_one_minus_beta1));
}

/// The direction where m and v are of the same gradients, in recipes without an option `update_bound`.
struct unbounded_variance {
  static constexpr bool has_late_elements = false;

  template <class Real>
  SLAMB_ELEMENT static Real direction(const Real& momentum, const Real& variance, const adam_scalars& s) {
    return unbounded_direction(momentum, variance, s);
  }
};

/// The direction where v takes every gradient.
struct living_variance {
  static constexpr bool has_late_elements = false;

  template <class Real>
  SLAMB_ELEMENT static Real direction(const Real& momentum, const Real& variance, const adam_scalars& s) {
    return adam_direction(momentum, variance, s);
  }
};

/// The direction where v has stopped, except for elements that begin late, whose v is stored as −v:
/// docs/algorithms/update_bound.md, "Late elements".
struct stopped_variance {
  static constexpr bool has_late_elements = true;  ///< in some steps

  /// |v|, without an instruction where no v is negative.
  template <class Real, class Scalars>
  SLAMB_ELEMENT static Real magnitude(const Real& variance, const Scalars& s) {
    if (s.late_below == no_variance_is_late) return variance;
    return absolute(variance);
  }

  template <class Real, class Scalars>
  SLAMB_ELEMENT static Real direction(const Real& momentum, const Real& variance, const Scalars& s) {
    using ::slamb::maximum;
    using ::slamb::minimum;
    if (s.late_below == no_variance_is_late) return adam_direction(momentum, variance, s);
    const Real none(0.0F);
    const Real its = select(has_no_variance(variance, s), late_start(momentum, s), absolute(variance));
    const Real direction = unbounded_direction(momentum, its, s);
    const Real bound = select(variance < Real(s.late_below), Real(s.late_bound), Real(s.bound));
    return select(none < its, maximum(minimum(direction, bound), -bound), none);  // an announcement moves nothing
  }
};

/// True if m̂ and v̂ are corrected for their start at 0. Recipes whose algorithm has no correction have no such option.
template <class Options>
bool corrects_bias(const Options& o) {
  if constexpr (requires { o.bias_correction; })
    return o.bias_correction;
  else
    return false;
}

/// The function that sets the scalars of Adam's update.
template <trust_ratio TrustRatio, class Options>
set_adam_scalars adam_scalars_of(const Options& o, const step_record* record, adam_scalars* scalars,
                                 const update_bound& bound = {}, bool has_late = false) {
  return {record,
          scalars,
          o.beta1,
          o.beta2,
          o.epsilon,
          corrects_bias(o),
          capability::has_uncorrected_epsilon<TrustRatio>,
          bound,
          has_late && bound.chosen < no_update_bound};
}

/// The constants of a tensor in passes of Adam's update.
template <class Factors>
struct tensor_constants {
  adam_scalars scalars;  ///< of the step
  float weight_decay;    ///< λ
  float rate;            ///< γ
  Factors factors;       ///< of the trust ratio
};

/// The scalars of a step without late elements.
struct scalars_without_late : adam_scalars {
  static constexpr float late_below = no_variance_is_late;

  SLAMB_HOST_DEVICE explicit scalars_without_late(const adam_scalars& s) : adam_scalars(s) {}
};

/// The constants of a tensor in a step without late elements. Their type says so, and compilers leave out of a loop what only
/// late elements need.
template <class Constants>
struct constants_without_late : Constants {
  scalars_without_late scalars;

  SLAMB_HOST_DEVICE explicit constants_without_late(const Constants& c) : Constants(c), scalars(c.scalars) {}
};

/// The constants of a tensor in passes by a checked gradient. Their type says so.
template <class Constants>
struct constants_of_checked_gradient : Constants {
  static constexpr bool gradient_is_checked = true;
};

/// The tables that hold these constants. Trivially copyable. Pointers are in the backend's memory, where a captured step finds
/// new values.
template <class Factors>
struct update_tables {
  const adam_scalars* scalars = nullptr;
  const segment* segments = nullptr;
  const double* rates = nullptr;  ///< [groups]
  const Factors* factors = nullptr;

  SLAMB_HOST_DEVICE tensor_constants<Factors> operator[](std::uint32_t segment) const {
    const tensor_rate its = rate_tables{segments, rates}[segment];
    return {*scalars, its.weight_decay, its.rate, factors[segment]};
  }
};

/// The base of all passes of Adam's update.
/// @tparam Variance  unbounded_variance, living_variance or stopped_variance
template <class TrustRatio, class Variance = living_variance>
struct adam_update {
  using factors_type = factors_of<TrustRatio>;
  static constexpr bool follows_gradient = true;

  update_tables<factors_type> tensors;
  TrustRatio trust_ratio;

  SLAMB_HOST_DEVICE tensor_constants<factors_type> constants(std::uint32_t segment) const { return tensors[segment]; }

  /// Calls `run` with these constants, in the type for the step.
  template <class Constants, class Run>
  static void specialize(const Constants& tensor, const Run& run) {
    if constexpr (Variance::has_late_elements)
      if (tensor.scalars.late_below == no_variance_is_late) return run(constants_without_late<Constants>(tensor));
    run(tensor);
  }

  // u = m̂/(√v̂ + ε) + λ p: docs/algorithms/lamb.md (6)
  template <class Element, class Constants>
  SLAMB_ELEMENT static update_terms<typename Element::real> update_terms_of(const Element& e, const Constants& tensor) {
    using Real = typename Element::real;
    const Real direction = Variance::direction(e.momentum, e.variance, tensor.scalars);
    return {e.parameter, direction, direction + Real(tensor.weight_decay) * e.parameter};
  }

  // p ← p − γ scale u: docs/algorithms/lamb.md (7), slamb.md (8)
  template <class Element, class Constants>
  SLAMB_ELEMENT void apply(Element& e, const Constants& tensor, const typename Element::real& discount) const {
    using Real = typename Element::real;
    const Real scaled = trust_ratio.scale(tensor.factors, discount) * update_terms_of(e, tensor).update;
    e.parameter = e.parameter - Real(tensor.rate) * scaled;
  }
};

/// Computes the trust ratio of a tensor from its sums; for `finish_segments`.
template <trust_ratio TrustRatio>
struct compute_trust_ratios {
  TrustRatio trust;
  const segment* segments;
  factors_of<TrustRatio>* factors;  ///< [tensors]
  int world;

  SLAMB_HOST_DEVICE tensor_properties properties_of(std::size_t tensor) const {
    const segment& s = segments[tensor];
    return {s.adapt, s.one_dimensional, s.weight_decay, world};
  }
  SLAMB_HOST_DEVICE void operator()(std::size_t tensor, const double* sums) const {
    if (segments[tensor].has_gradient) factors[tensor] = trust.factors(sums, properties_of(tensor));
  }
};

/// The base of passes by a gradient that is the same on all ranks: m, v ← ….
template <class TrustRatio, class Variance>
struct update_moments : adam_update<TrustRatio, Variance> {
  bool is_checked = false;  ///< `checked_gradient_of` is enough

  /// Calls `run` with these constants, in a type that says whether the gradient is checked.
  template <class Constants, class Run>
  void specialize(const Constants& tensor, const Run& run) const {
    if (is_checked) return run(constants_of_checked_gradient<Constants>{tensor});
    run(tensor);
  }

  template <class Element, class Constants>
  SLAMB_ELEMENT static void update(Element& e, const Constants& tensor) {
    const auto gradient = gradient_in(e, tensor);
    update_momentum(e, gradient, tensor.scalars);
    update_variance(e, gradient, tensor.scalars);
  }

 private:
  template <class Element, class Constants>
  SLAMB_ELEMENT static auto gradient_in(const Element& e, const Constants& tensor) {
    if constexpr (requires { Constants::gradient_is_checked; })
      return checked_gradient_of(e, tensor.scalars);
    else
      return gradient_of(e, tensor.scalars);
  }
};

/// m, v ← …, and the sums for the trust ratio.
template <class TrustRatio, class Variance = living_variance>
struct update_and_sum : update_moments<TrustRatio, Variance> {
  using reads = arrays<array::gradient, array::momentum, array::variance, array::parameter>;
  using writes = arrays<array::momentum, array::variance>;
  static constexpr int sums = TrustRatio::sums_per_segment;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& results) const {
    this->update(e, tensor);
    this->trust_ratio.accumulate(this->update_terms_of(e, tensor), true, results);
  }
};

/// p ← p − γ φ u.
template <class TrustRatio, class Variance = living_variance>
struct apply_update : adam_update<TrustRatio, Variance> {
  using reads = arrays<array::momentum, array::variance, array::parameter>;
  using writes = arrays<array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    this->apply(e, tensor, Real(1.0F));
  }
};

/// m, v, p ← … in one pass, if the trust ratio needs no norms.
template <class TrustRatio, class Variance = living_variance>
struct update_and_apply : update_moments<TrustRatio, Variance> {
  using reads = typename update_and_sum<TrustRatio>::reads;
  using writes = union_of_t<typename update_and_sum<TrustRatio>::writes, arrays<array::parameter>>;
  static constexpr int sums = 0;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    this->update(e, tensor);
    this->apply(e, tensor, Real(1.0F));
  }
};

// The lists of passes of a step, which runs its passes by these names.

/// A gradient that is exchanged dense. Every rank gathers it; a single rank only checks it, if the options demand it.
struct dense_gradient_passes {
  using gather = gather_gradient;
  using check = check_gradient;
  using norm = sum_gradient;  ///< to clip it; checks too
};

/// Adam's update by a gradient that is the same on all ranks.
template <class TrustRatio, class Variance = living_variance>
struct adam_passes {
  static constexpr bool needs_norms = TrustRatio::sums_per_segment > 0;
  using update =
      std::conditional_t<needs_norms, update_and_sum<TrustRatio, Variance>, update_and_apply<TrustRatio, Variance>>;
  using apply = apply_update<TrustRatio, Variance>;  ///< once there are norms
};

}  // namespace slamb::detail
