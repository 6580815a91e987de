// The passes of AdamW and LAMB.
#pragma once

#include <cstdint>
#include <span>

#include "slamb/core/concepts.hpp"
#include "slamb/core/element.hpp"
#include "slamb/core/pass.hpp"
#include "slamb/optimizer/adam_passes.hpp"
#include "slamb/optimizer/common_passes.hpp"

namespace slamb {

/// This rank's gradient → exchange buffer, seeing whether it is finite.
struct gather_gradient : pass_without_constants {
  static constexpr unsigned reads = stream::gradient;
  static constexpr unsigned writes = stream::exchanged;
  static constexpr int sums = 0;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
    e.exchanged = e.gradient;
  }
};

/// Sees whether the gradient is finite.
struct check_gradient : pass_without_constants {
  static constexpr unsigned reads = stream::gradient;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 0;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
  }
};

/// The same, and ‖g‖².
struct sum_gradient : pass_without_constants {
  static constexpr unsigned reads = stream::gradient;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 1;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
    results.add_square(0, e.gradient);
  }
};

/// m, v ← …, and the sums that the trust ratio asks for.
template <class TrustRatio>
struct update_and_sum : adam_update<TrustRatio> {
  static constexpr unsigned reads = stream::gradient | stream::momentum | stream::variance | stream::parameter;
  static constexpr unsigned writes = stream::momentum | stream::variance;
  static constexpr int sums = TrustRatio::sums_per_segment;

  template <class Real, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, const Constants& tensor, Sums& results) const {
    update_momentum(e, tensor.scalars);
    update_variance(e, tensor.scalars);
    this->trust_ratio.accumulate(this->candidate_of(e, tensor), true, results);
  }
};

/// p ← p − γ φ u.
template <class TrustRatio>
struct apply_update : adam_update<TrustRatio> {
  static constexpr unsigned reads = stream::momentum | stream::variance | stream::parameter;
  static constexpr unsigned writes = stream::parameter;
  static constexpr int sums = 0;

  template <class Real, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, const Constants& tensor, Sums& /*sums*/) const {
    this->apply(e, tensor, Real(1.0F));
  }
};

/// Both at once, where the rate needs no norms.
template <class TrustRatio>
struct update_and_apply : adam_update<TrustRatio> {
  static constexpr unsigned reads = update_and_sum<TrustRatio>::reads;
  static constexpr unsigned writes = update_and_sum<TrustRatio>::writes | stream::parameter;
  static constexpr int sums = 0;

  template <class Real, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, const Constants& tensor, Sums& /*sums*/) const {
    update_momentum(e, tensor.scalars);
    update_variance(e, tensor.scalars);
    this->apply(e, tensor, Real(1.0F));
  }
};

}  // namespace slamb
