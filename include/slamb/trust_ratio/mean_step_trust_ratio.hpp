// A TrustRatio for SLAMB whose parameters are kept together: LAMB's, of the step that the ranks make together.
#pragma once

#include <limits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/norm_ratio.hpp"

namespace slamb {

/// φ = clamp(‖p‖/‖ū‖, lower, upper), with ‖p‖/‖ū‖ = 1 if either norm is 0, where ū is the mean of the ranks' updates. So a
/// tensor's mean step is as long as LAMB's, γ‖p‖, for any number of ranks.
///
/// No rank knows ū. Of the exchanged elements M, each rank knows the direction w before the exchange and w̄ after it. Of the
/// others, the mean over ranks is shorter than a rank's own update by about as much:
///
///     ‖ū‖² = ‖u[M]‖² + η² ‖u[¬M]‖²        η² = ‖w̄[M]‖²/‖w[M]‖², in [1/N, 1]
///
/// The age of elements has no influence. Use it with a ParameterSync that exchanges in every step, or in every few.
///
/// Tensors with `adapt = false` have φ = 1.
struct mean_step_trust_ratio {
  double lower = 0.0;
  double upper = std::numeric_limits<double>::infinity();

  static constexpr int sums_per_segment = 5;  // ‖p‖²; of M: ‖u‖², ‖w̄‖², ‖w‖² before the exchange; of ¬M: ‖u‖²
  static constexpr bool ignores_staleness = true;

  struct segment_factors {
    float ratio;
  };

  /// @throws std::invalid_argument
  void validate() const { detail::require_clamp("mean_step_trust_ratio", lower, upper); }

  /// Lists the options that must be equal on all ranks.
  template <class Facts>
  void describe(Facts& facts) const {
    facts.add("mean_step_trust_ratio's lower", lower);
    facts.add("mean_step_trust_ratio's upper", upper);
  }

  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate(const update_terms<Real>& x, bool received, Sums& sums) const {
    sums.add_square(0, x.parameter);
    sums.add_square(received ? 1 : 4, x.update);
    if (received) sums.add_square(2, x.direction);
  }
  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate_sent(const update_terms<Real>& x, Sums& sums) const {
    sums.add_square(3, x.direction);
  }

  SLAMB_HOST_DEVICE segment_factors factors(const double* sums, tensor_properties facts) const {
    if (!facts.adapt) return {1.0F};
    const bool is_known = sums[2] > 0.0 && sums[3] > 0.0;
    const double eta_squared = is_known ? detail::clamp(sums[2] / sums[3], 1.0 / facts.world, 1.0) : 1.0;
    const double of_mean_step = sums[1] + eta_squared * sums[4];
    return {static_cast<float>(detail::clamp(detail::norm_ratio(sums[0], of_mean_step, 1.0), lower, upper))};
  }

  template <class Real>
  SLAMB_ELEMENT Real scale(segment_factors factors, const Real& /*staleness discount*/) const {
    return Real(factors.ratio);
  }
};

static_assert(trust_ratio<mean_step_trust_ratio> && capability::looks_before_exchange<mean_step_trust_ratio>);

}  // namespace slamb
