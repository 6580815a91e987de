// LAMB's TrustRatio: a tensor's update is proportional to its norm.
#pragma once

#include <limits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/norm_ratio.hpp"

namespace slamb {

/// φ = clamp(‖p‖/‖u‖, lower, upper), with ‖p‖/‖u‖ = 1 if either norm is 0.
///
/// The public variants of LAMB differ in these switches: DeepSpeed clamps to [0.01, 10], BERT recipes to [0.01, 0.3];
/// apex leaves tensors without weight decay at φ = 1 unless asked for `nvlamb`.
///
/// *Reference*: LAMB, arXiv 1904.00962, algorithm 2.
struct layerwise_trust_ratio {
  double lower = 0.0;
  double upper = std::numeric_limits<double>::infinity();
  bool adapt_without_weight_decay = true;  ///< false: φ = 1 where λ = 0

  static constexpr int sums_per_segment = 2;  // ‖p‖², ‖u‖²

  struct segment_factors {
    float ratio;
  };

  /// @throws std::invalid_argument
  void validate() const { detail::require_clamp("layerwise_trust_ratio", lower, upper); }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("layerwise_trust_ratio's lower", lower);
    fields.add("layerwise_trust_ratio's upper", upper);
    fields.add("layerwise_trust_ratio's adapt_without_weight_decay", adapt_without_weight_decay ? 1.0 : 0.0);
  }

  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate(const update_terms<Real>& x, bool /*received*/, Sums& sums) const {
    sums.add_square(0, x.parameter);
    sums.add_square(1, x.update);
  }

  SLAMB_HOST_DEVICE segment_factors factors(const double* sums, tensor_properties properties) const {
    if (!properties.adapt || (properties.weight_decay == 0.0F && !adapt_without_weight_decay)) return {1.0F};
    return {static_cast<float>(detail::clamp(detail::norm_ratio(sums[0], sums[1], 1.0), lower, upper))};
  }

  template <class Real>
  SLAMB_ELEMENT Real scale(segment_factors factors, const Real& /*staleness discount*/) const {
    return Real(factors.ratio);
  }
};

static_assert(trust_ratio<layerwise_trust_ratio>);

}  // namespace slamb
