// The passes of 1-bit Adam and 1-bit LAMB after their warm-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"

namespace slamb::detail {

namespace array {

/// v_f: the variance as it would be if it were not frozen: docs/algorithms/one_bit_lamb.md (14).
struct fresh_variance : state_array {
  static constexpr const char* name = "fresh variance";
  template <class T>
  struct field {
    T fresh_variance;
  };
};

}  // namespace array

/// The state that a frozen trust ratio keeps for a tensor; others keep none.
template <class TrustRatio>
struct kept_by {
  struct type {};
};
template <capability::frozen_ratio TrustRatio>
struct kept_by<TrustRatio> {
  using type = typename TrustRatio::segment_state;
};

/// The numbers of sums and maxima of a tensor for the trust ratio in compressed steps.
template <trust_ratio TrustRatio>
constexpr int compressed_sums() noexcept {
  if constexpr (capability::frozen_ratio<TrustRatio>)
    return TrustRatio::frozen_sums;
  else
    return TrustRatio::sums_per_segment;
}
template <trust_ratio TrustRatio>
constexpr int compressed_maxima() noexcept {
  if constexpr (capability::frozen_ratio<TrustRatio>)
    return TrustRatio::frozen_maxima;
  else
    return 0;
}

/// Computes the trust ratio of a warm-up step, and updates the average that the frozen trust ratio starts from.
template <trust_ratio TrustRatio>
struct keep_average : compute_trust_ratios<TrustRatio> {
  typename kept_by<TrustRatio>::type* kept;  ///< [tensors]

  SLAMB_HOST_DEVICE void operator()(std::size_t tensor, const double* sums) const {
    if (!this->segments[tensor].has_gradient) return;
    compute_trust_ratios<TrustRatio>::operator()(tensor, sums);
    if constexpr (capability::frozen_ratio<TrustRatio>)
      kept[tensor] = this->trust.averaged(kept[tensor], this->factors[tensor]);
  }
};

/// Computes the trust ratio of a compressed step: docs/algorithms/one_bit_lamb.md (17) … (19)
template <capability::frozen_ratio TrustRatio>
struct compute_frozen_trust_ratios : compute_trust_ratios<TrustRatio> {
  typename kept_by<TrustRatio>::type* kept;  ///< [tensors]
  bool lets_elements_begin;

  SLAMB_HOST_DEVICE void operator()(std::size_t tensor, const double* found) const {
    if (!this->segments[tensor].has_gradient) return;
    tensor_properties properties = this->properties_of(tensor);
    properties.may_begin_late = lets_elements_begin;
    this->factors[tensor] =
        this->trust.frozen_factors(kept[tensor], found, found + TrustRatio::frozen_sums, properties);
  }
};

/// The constants of a tensor: those of the update, and the scale of its signal.
template <class Factors>
struct signal_constants : tensor_constants<Factors> {
  float signal_scale = 1.0F;          ///< z
  float inverse_signal_scale = 1.0F;  ///< 1/z
};

/// The signal is the momentum updated with this rank's gradient. The received mean becomes the momentum.
template <class TrustRatio>
struct exchanged_momentum : adam_update<TrustRatio, stopped_variance> {
  using factors_type = typename adam_update<TrustRatio, stopped_variance>::factors_type;
  using signal_reads = arrays<array::gradient, array::momentum>;

  const float* signal_scales;  ///< [tensors][2]: z and 1/z; null: 1

  SLAMB_HOST_DEVICE signal_constants<factors_type> constants(std::uint32_t segment) const {
    const tensor_constants<factors_type> update = this->tensors[segment];
    if (signal_scales == nullptr) return {update, 1.0F, 1.0F};
    return {update, signal_scales[2 * segment], signal_scales[2 * segment + 1]};
  }

  // x = z (β1 m + (1 − β1) g): docs/algorithms/one_bit_adam.md (6), one_bit_lamb.md (11)
  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, const Constants& tensor, Sums& results) const {
    using Real = typename Element::real;
    results.check_finite(e.gradient);
    return Real(tensor.signal_scale) *
           moved_towards(e.momentum, e.gradient * Real(tensor.scalars.gradient_scale), tensor.scalars.one_minus_beta1);
  }

  // m ← onebit(x)/z: docs/algorithms/one_bit_adam.md (7), one_bit_lamb.md (12)
  template <class Element, class Constants>
  SLAMB_ELEMENT static auto received(const Element& e, const Constants& tensor) {
    using Real = typename Element::real;
    return e.exchanged * Real(tensor.inverse_signal_scale);
  }
};

/// m ← received; p ← p − γ φ u, if the trust ratio needs no norms.
template <class TrustRatio>
struct receive_and_apply : exchanged_momentum<TrustRatio> {
  using reads = arrays<array::variance, array::parameter>;
  using writes = arrays<array::momentum, array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.momentum = this->received(e, tensor);
    this->apply(e, tensor, Real(1.0F));
  }
};

/// m ← received, and the sums for the trust ratio.
template <class TrustRatio>
struct receive_and_sum : exchanged_momentum<TrustRatio> {
  using reads = arrays<array::variance, array::parameter>;
  using writes = arrays<array::momentum>;
  static constexpr int sums = TrustRatio::sums_per_segment;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& results) const {
    e.momentum = this->received(e, tensor);
    this->trust_ratio.accumulate(this->update_terms_of(e, tensor), true, results);
  }
};

/// m ← received. Reconstructs the gradient from old and new momentum, updates v_f with it, and sums how far v is from v_f.
template <class TrustRatio>
struct receive_and_refresh : exchanged_momentum<TrustRatio> {
  using reads = arrays<array::momentum, array::variance, array::fresh_variance, array::parameter>;
  using writes = arrays<array::momentum, array::fresh_variance>;
  static constexpr int sums = TrustRatio::frozen_sums;
  static constexpr int maxima = TrustRatio::frozen_maxima;

  float inverse_one_minus_beta1;  ///< 1/(1 − β1)

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& results) const {
    using Real = typename Element::real;
    const Real before = e.momentum;
    e.momentum = this->received(e, tensor);
    // ĝ = (m − β1 m′)/(1 − β1);  v_f ← β2 v_f + (1 − β2) ĝ²: docs/algorithms/one_bit_lamb.md (13), (14)
    const Real gradient = before + (e.momentum - before) * Real(inverse_one_minus_beta1);
    e.fresh_variance = moved_towards(e.fresh_variance, finite_square(gradient), tensor.scalars.one_minus_beta2);
    // D/D_f: docs/algorithms/one_bit_lamb.md (15), (17); 1 for late elements, whose v has not stopped
    const Real epsilon(tensor.scalars.epsilon);
    Real deviation_ratio = (square_root(stopped_variance::magnitude(e.variance, tensor.scalars)) + epsilon) /
                           (square_root(e.fresh_variance) + epsilon);
    if (tensor.scalars.late_below != no_variance_is_late)
      deviation_ratio = select(e.variance < Real(tensor.scalars.late_below), Real(1.0F), deviation_ratio);
    this->trust_ratio.accumulate_frozen(this->update_terms_of(e, tensor), deviation_ratio, results);
  }
};

/// The passes of a compressed step: steps run these.
template <class TrustRatio>
struct one_bit_passes {
  static constexpr bool is_frozen = capability::frozen_ratio<TrustRatio>;
  static constexpr bool needs_norms = is_frozen || TrustRatio::sums_per_segment > 0;
  /// The pass around the exchange of the momentum.
  using receive =
      std::conditional_t<is_frozen, receive_and_refresh<TrustRatio>,
                         std::conditional_t<needs_norms, receive_and_sum<TrustRatio>, receive_and_apply<TrustRatio>>>;
  using apply = apply_update<TrustRatio, stopped_variance>;  ///< once there are norms
};

/// v_f ← v.
struct start_fresh_variance : pass_without_constants {
  using reads = arrays<array::variance>;
  using writes = arrays<array::fresh_variance>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.fresh_variance = e.variance;
  }
};

}  // namespace slamb::detail
