// The null TrustRatio: every tensor moves at the learning rate. With it LAMB is AdamW.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb {

/// φ = 1 for every tensor. It needs no norms, so the update is one pass.
struct unit_trust_ratio {
  static constexpr int sums_per_segment = 0;

  struct segment_factors {};

  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate(const update_terms<Real>& /*x*/, bool /*received*/, Sums& /*sums*/) const {}

  SLAMB_HOST_DEVICE segment_factors factors(const double* /*sums*/, tensor_properties /*properties*/) const {
    return {};
  }

  template <class Real>
  SLAMB_ELEMENT Real scale(segment_factors /*factors*/, const Real& /*staleness discount*/) const {
    return Real(1.0F);
  }
};

static_assert(trust_ratio<unit_trust_ratio>);

}  // namespace slamb
