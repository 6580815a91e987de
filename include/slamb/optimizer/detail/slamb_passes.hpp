// The passes of SLAMB: A forms the payload, B sums the received payload, C updates. Only C writes to the model, so a step that
// fails or is skipped changes nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "slamb/compressor/chain.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"

namespace slamb::detail {

/// The values that a data-dependent sparsifier chooses from: m updated with this rank's gradient.
template <class TrustRatio>
struct momentum_to_choose_from : adam_update<TrustRatio> {
  using signal_reads = arrays<array::gradient, array::momentum>;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT auto signal(Element e, const Constants& tensor, Sums& results) const {
    results.check_finite(e.gradient);
    update_momentum(e, checked_gradient_of(e, tensor.scalars), tensor.scalars);
    return e.momentum;
  }
};

/// The sums of a sparse pass, for selected elements.
template <class Sums, class Mask>
struct sums_of_selected {
  Sums& all;
  const Mask& selected;

  template <class Real>
  SLAMB_ELEMENT void add_square(int index, const Real& x) {
    all.add_square_of(selected, index, x);
  }
};

/// A: packs m of selected elements, with v and p for B, and sums the elements that are not selected.
template <class TrustRatio>
struct form_payload : adam_update<TrustRatio> {
  static constexpr bool sums_norms = TrustRatio::sums_per_segment > 0;
  using reads = union_of_t<arrays_if<sums_norms, arrays<array::parameter>>, arrays<array::gradient, array::momentum>,
                           arrays_if<sums_norms, arrays<array::variance>>>;
  using writes = arrays<>;
  using packs = union_of_t<arrays<array::momentum>, arrays_if<sums_norms, arrays<array::variance, array::parameter>>>;
  static constexpr bool receives = false;
  static constexpr bool needs_discount = capability::looks_at_staleness<TrustRatio>;
  static constexpr int sums = TrustRatio::sums_per_segment;

  float unsent_rate = 1.0F;  ///< 1/√N

  template <class Element, class Lanes, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, [[maybe_unused]] const Lanes& at, const Constants& tensor,
                                Sums& results) const {
    results.check_finite(e.gradient);
    const auto gradient = checked_gradient_of(e, tensor.scalars);
    update_momentum(e, gradient, tensor.scalars);
    if constexpr (sums_norms) {
      update_variance(e, gradient, tensor.scalars);
      using Real = typename Element::real;
      const auto terms = this->update_terms_of(e, tensor);
      if constexpr (needs_discount)
        this->trust_ratio.accumulate(terms, false, capability::update_age<Real>{at.discount, Real(unsent_rate)},
                                     results);
      else
        this->trust_ratio.accumulate(terms, false, results);
      if constexpr (capability::looks_before_exchange<TrustRatio>) {
        sums_of_selected<Sums, decltype(at.selected)> sent{results, at.selected};
        this->trust_ratio.accumulate_sent(terms, sent);
      }
    }
  }
};

/// B: sums the received elements, over the payload arrays.
template <class TrustRatio>
struct sum_received : adam_update<TrustRatio> {
  using reads = arrays<array::momentum, array::variance, array::parameter>;
  using writes = arrays<>;
  static constexpr int sums = TrustRatio::sums_per_segment;

  float per_rank;  ///< 1/N

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& tensor, Sums& results) const {
    using Real = typename Element::real;
    e.momentum = e.momentum * Real(per_rank);
    const auto terms = this->update_terms_of(e, tensor);
    if constexpr (capability::looks_at_staleness<TrustRatio>)
      this->trust_ratio.accumulate(terms, true, capability::update_age<Real>{Real(1.0F), Real(1.0F)}, results);
    else
      this->trust_ratio.accumulate(terms, true, results);
  }
};

/// C: m ← the mean over ranks of selected elements, this rank's m of others; v ← …; p ← p − γ scale u.
template <class TrustRatio>
struct apply_received : adam_update<TrustRatio> {
  using reads = arrays<array::gradient, array::momentum, array::variance, array::parameter>;
  using writes = arrays<array::momentum, array::variance, array::parameter>;
  using packs = arrays<>;
  static constexpr bool receives = true;
  static constexpr bool needs_discount = !capability::ignores_staleness<TrustRatio>;
  static constexpr int sums = 0;

  float per_rank;  ///< 1/N

  template <class Element, class Lanes, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Lanes& at, const Constants& tensor, Sums& /*sums*/) const {
    using Real = typename Element::real;
    const auto gradient = checked_gradient_of(e, tensor.scalars);  // A has checked it
    update_momentum(e, gradient, tensor.scalars);
    update_variance(e, gradient, tensor.scalars);
    e.momentum = select(at.selected, e.exchanged * Real(per_rank), e.momentum);
    this->apply(e, tensor, at.discount);
  }
};

/// The passes of a step of SLAMB: steps run these.
template <class TrustRatio>
struct slamb_passes {
  static constexpr bool needs_norms = TrustRatio::sums_per_segment > 0;
  using choose = momentum_to_choose_from<TrustRatio>;  ///< for a data-dependent sparsifier, on the leader
  using form = form_payload<TrustRatio>;
  using sum = sum_received<TrustRatio>;  ///< over the payload, if there are norms
  using apply = apply_received<TrustRatio>;
};

}  // namespace slamb::detail
