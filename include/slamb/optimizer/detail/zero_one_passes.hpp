// The passes of 0/1 Adam, in addition to Adam's.
#pragma once

#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/anchor.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/detail/update_bound.hpp"
#include "slamb/trust_ratio/unit_trust_ratio.hpp"

namespace slamb::detail {

namespace array {

/// b: the local update since the last exchange: docs/algorithms/zero_one_adam.md (10).
struct accumulated_update : state_array {
  static constexpr const char* name = "accumulated update";
  template <class T>
  struct field {
    T accumulated_update;
  };
};

}  // namespace array

/// Phase A without a refresh: the signal is the gradient, and the received mean replaces it.
struct receive_gradient : adam_update<unit_trust_ratio, stopped_variance> {
  using signal_reads = arrays<array::gradient>;
  using reads = arrays<array::momentum, array::variance, array::parameter>;
  using writes = arrays<array::momentum, array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, const Constants& tensor, Sums& results) const {
    using Real = typename Element::real;
    results.check_finite(e.gradient);
    return e.gradient * Real(tensor.scalars.gradient_scale);
  }

  // docs/algorithms/zero_one_adam.md (4) … (6)
  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.momentum = moved_towards(e.momentum, e.exchanged, tensor.scalars.one_minus_beta1);
    this->apply(e, tensor, Real(1.0F));
  }
};

/// The constants of a tensor in phase B: those of the update, and the sum of learning rates since the last exchange.
template <class Factors>
struct local_constants : tensor_constants<Factors> {
  bool has_gradient = true;
  float inverse_rate_sum = 0.0F;  ///< 1/Γ; 0 where Γ is 0
  float rate_sum = 0.0F;          ///< Γ
  float most = 0.0F;              ///< Γ B, the longest step that an exchange makes of an element
  float late_most = 0.0F;         ///< likewise, if its variance began late
};

/// Phase B: a local step, from the anchor by the local update.
struct local_update : adam_update<unit_trust_ratio, stopped_variance> {
  using reads = arrays<array::gradient, array::momentum, array::variance, array::accumulated_update, array::anchor>;
  using writes = arrays<array::momentum, array::accumulated_update, array::parameter>;
  static constexpr int sums = 0;

  // m_i, b_i, p_i: docs/algorithms/zero_one_adam.md (9) … (11)
  template <class Element, class Constants>
  SLAMB_ELEMENT void move(Element& e, const Constants& tensor) const {
    using Real = typename Element::real;
    const Real before = e.anchor + e.accumulated_update;
    update_momentum(e, tensor.scalars);
    const Real direction = stopped_variance::direction(e.momentum, e.variance, tensor.scalars);
    e.accumulated_update = e.accumulated_update - Real(tensor.rate) * (direction + Real(tensor.weight_decay) * before);
    e.parameter = e.anchor + e.accumulated_update;
  }

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    move(e, tensor);
  }
};

/// Phase B with an exchange: the signal is the local update since the last exchange, in units of the momentum.
/// A tensor without a gradient has not moved in this step. It is exchanged if it has moved since the last exchange.
struct exchange_update : local_update {
  static constexpr bool follows_gradient = false;
  using factors_type = local_update::factors_type;
  using signal_reads = local_update::reads;
  using writes = arrays<array::momentum, array::accumulated_update, array::anchor, array::parameter>;

  const float* inverse_rate_sums = nullptr;  ///< [tensors] 1/Γ

  SLAMB_HOST_DEVICE local_constants<factors_type> constants(std::uint32_t segment) const {
    constexpr auto infinity = static_cast<float>(no_update_bound);
    const tensor_constants<factors_type> update = tensors[segment];
    const float inverse = inverse_rate_sums[segment], bound = update.scalars.bound;
    const bool has_moved = inverse != 0.0F, is_bounded = bound < infinity;
    const float longest[] = {has_moved ? 1.0F / inverse : 0.0F, has_moved ? bound / inverse : 0.0F,
                             has_moved ? update.scalars.late_bound / inverse : 0.0F};
    return {update,     tensors.segments[segment].has_gradient, inverse,
            longest[0], is_bounded ? longest[1] : infinity,     is_bounded ? longest[2] : infinity};
  }

  template <class Element, class Constants>
  SLAMB_ELEMENT void move_if_present(Element& e, const Constants& tensor) const {
    if (tensor.has_gradient) this->move(e, tensor);
  }

  // D = √v + ε
  template <class Element, class Constants>
  SLAMB_ELEMENT static auto deviation(const Element& e, const Constants& tensor) {
    using Real = typename Element::real;
    return square_root(stopped_variance::magnitude(e.variance, tensor.scalars)) + Real(tensor.scalars.epsilon);
  }

  // b D: docs/algorithms/zero_one_adam.md (13); without a variance −Γ m_i
  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT auto signal(Element e, const Constants& tensor, Sums& results) const {
    if (tensor.has_gradient) results.check_finite(e.gradient);
    using Real = typename Element::real;
    move_if_present(e, tensor);
    return select(has_no_variance(e.variance, tensor.scalars), -(e.momentum * Real(tensor.rate_sum)),
                  e.accumulated_update * deviation(e, tensor));
  }

  // docs/algorithms/zero_one_adam.md (14) … (16); update_bound.md (6)
  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    move_if_present(e, tensor);
    if (tensor.inverse_rate_sum != 0.0F) e.momentum = -(e.exchanged * Real(tensor.inverse_rate_sum));
    using ::slamb::maximum;
    using ::slamb::minimum;
    const Real most = select(e.variance < Real(tensor.scalars.late_below), Real(tensor.late_most), Real(tensor.most));
    const Real step = maximum(minimum(e.exchanged / deviation(e, tensor), most), -most);
    const Real first = -(stopped_variance::direction(e.momentum, e.variance, tensor.scalars) * Real(tensor.rate_sum));
    e.anchor = e.anchor + select(has_no_variance(e.variance, tensor.scalars), first, step);
    e.parameter = e.anchor;
    e.accumulated_update = Real(0.0F);
  }
};

/// Phase B of a single rank: Adam with a frozen variance.
struct update_with_frozen_variance : adam_update<unit_trust_ratio, stopped_variance> {
  using reads = arrays<array::gradient, array::momentum, array::variance, array::parameter>;
  using writes = arrays<array::momentum, array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    update_momentum(e, tensor.scalars);
    this->apply(e, tensor, Real(1.0F));
  }
};

/// The passes of each kind of step: steps run these. Steps that refresh the variance run
/// dense_gradient_passes and adam_passes.
struct zero_one_passes {
  using receive = receive_gradient;            ///< around the exchange of the gradient
  using receive_update = exchange_update;      ///< around the exchange of local updates
  using check = check_gradient;                ///< of a local step
  using local = local_update;                  ///< of a local step
  using single = update_with_frozen_variance;  ///< of a single rank, in place of `local`
};

/// Sets the anchor to the parameters, which are equal on all ranks.
struct start_anchor : pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<array::anchor, array::accumulated_update>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.anchor = e.parameter;
    e.accumulated_update = Real(0.0F);
  }
};

}  // namespace slamb::detail
