// The statistic from which a quantizer's scale is computed.
#pragma once

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail {

/// The statistic of some elements from which their scale is computed: Σ x², Σ |x| or max |x|, as a sum or maximum of a team.
template <segment_scale Scale>
struct scale_statistic {
  static constexpr int sums = Scale == segment_scale::l2 || Scale == segment_scale::l1 ? 1 : 0;
  static constexpr int maxima = Scale == segment_scale::max ? 1 : 0;

  template <class Sums, class Real>
  SLAMB_ELEMENT static void add(Sums& all, const Real& x) {
    if constexpr (Scale == segment_scale::l2) all.add_square(0, x);
    if constexpr (Scale == segment_scale::l1) all.add(0, absolute(x));
    if constexpr (Scale == segment_scale::max) all.take_maximum(0, absolute(x));
  }
};

}  // namespace slamb::detail
