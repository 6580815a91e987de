// SLAMB's TrustRatio: two ratios of a tensor, over exchanged and other elements, mixed by the age of each element; or one ratio, of the
// step that the ranks make together.
#pragma once

#include <cmath>
#include <limits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/norm_ratio.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// The two public forms of SLAMB's element-wise adaptive rescaling, and one of this library.
enum class rescaling {
  product,   ///< the paper's: one factor from the mixed ratio, one from the mixed learning rate
  blend,     ///< its second public implementation's: two steps, each with its ratio, mixed
  mean_step  ///< one ratio for a tensor, of the mean of the ranks' steps; for parameters that are kept together
};

/// Scales each element by its age. M are the elements exchanged at this step, s = β3^age, R(x) = ‖p[x]‖/‖u[x]‖, or 1 if a norm is
/// 0, and w is the direction without weight decay.
///
/// *product*: scale_j = clamp(s_j R(M) + (1 − s_j) R(¬M), lower, upper) · (s_j + (1 − s_j)/√N); tensors of one
/// dimension have scale R(M), not clamped. *blend*: scale_j = A s_j + B (1 − s_j)/√N, with A = clamp(‖p[M]‖/‖w[M]‖ or
/// 1, lower, upper) and B = clamp(‖p[¬M]‖/‖w[¬M]‖ or 0, 0, upper); ε is added to the uncorrected √v.
///
/// Tensors with `adapt = false` have ratios of 1.
///
/// `Capped`: the scales of a tensor are multiplied by min(1, ‖p‖/‖scale u‖), so that its step is at most as long as LAMB's, γ‖p‖.
/// ‖scale u‖ is computed without the clamp of *product* to `upper`, and with both ratios at least `lower`. So where this clamp acts,
/// the step is shorter than necessary.
///
/// *Reference*: SLAMB, ICML 2023, PMLR 202:38801, algorithm 1 and section 3.
template <rescaling Form = rescaling::product, bool Capped = false>
struct rescaled_trust_ratio {
  double lower = 0.01;
  double upper = 1000.0;

  // Of M: ‖p‖², ‖u‖² (or ‖w‖²); of ¬M: the same. Capped, of all: Σ (s c u)², Σ ((1 − s) c u)², Σ (c u)²
  static constexpr int sums_per_segment = Capped ? 7 : 4;
  static constexpr bool epsilon_is_uncorrected = Form == rescaling::blend;

  struct segment_factors {
    float sent;    ///< R(M) or A
    float unsent;  ///< R(¬M) or B
    float lower;   ///< of the product form's clamp
    float upper;
    float unsent_rate;  ///< 1/√N
  };

  /// @throws std::invalid_argument
  void validate() const { detail::require_clamp("rescaled_trust_ratio", lower, upper); }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("rescaled_trust_ratio's lower", lower);
    fields.add("rescaled_trust_ratio's upper", upper);
  }

  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate(const update_terms<Real>& x, bool received, Sums& sums) const {
    const int part = received ? 0 : 2;
    sums.add_square(part, x.parameter);
    sums.add_square(part + 1, Form == rescaling::blend ? x.direction : x.update);
  }
  template <class Real, class Sums>
  requires Capped SLAMB_ELEMENT void accumulate(const update_terms<Real>& x, bool received,
                                                const capability::update_age<Real>& age, Sums& sums) const {
    accumulate(x, received, sums);
    const Real stale = (Real(1.0F) - age.discount) * age.unsent_rate;  // of blend
    if constexpr (Form == rescaling::blend) {
      sums.add_square(4, age.discount * x.update);
      sums.add_square(5, stale * x.update);
      sums.add_square(6, (age.discount + stale) * x.update);
    } else {
      const Real scaled = (age.discount + stale) * x.update;
      sums.add_square(4, age.discount * scaled);
      sums.add_square(5, (Real(1.0F) - age.discount) * scaled);
      sums.add_square(6, scaled);
    }
  }

  static constexpr float unbounded = std::numeric_limits<float>::infinity();

  SLAMB_HOST_DEVICE segment_factors factors(const double* sums, tensor_properties properties) const {
    const auto unsent_rate = static_cast<float>(1.0 / sqrt(static_cast<double>(properties.world)));
    if (!properties.adapt) return {1.0F, 1.0F, 0.0F, unbounded, unsent_rate};
    if constexpr (Form == rescaling::product) {
      const double sent = detail::norm_ratio(sums[0], sums[1], 1.0);
      const double unsent = detail::norm_ratio(sums[2], sums[3], 1.0);
      if (properties.one_dimensional)
        return {static_cast<float>(sent), static_cast<float>(sent), 0.0F, unbounded, unsent_rate};
      const double cap = cap_of(sums, detail::clamp(sent, lower, unbounded), detail::clamp(unsent, lower, unbounded));
      return {static_cast<float>(cap * sent), static_cast<float>(cap * unsent), static_cast<float>(cap * lower),
              static_cast<float>(cap * upper), unsent_rate};
    } else {
      const double sent = detail::clamp(detail::norm_ratio(sums[0], sums[1], 1.0), lower, upper);
      const double unsent = detail::clamp(detail::norm_ratio(sums[2], sums[3], 0.0), 0.0, upper);
      const double cap = cap_of(sums, sent, unsent);
      return {static_cast<float>(cap * sent), static_cast<float>(cap * unsent), 0.0F, unbounded, unsent_rate};
    }
  }

  template <class Real>
  SLAMB_ELEMENT Real scale(const segment_factors& f, const Real& discount) const {
    const Real staleness = Real(1.0F) - discount;
    if constexpr (Form == rescaling::product) {
      const Real ratio = discount * Real(f.sent) + staleness * Real(f.unsent);
      const Real clamped = minimum(maximum(ratio, Real(f.lower)), Real(f.upper));
      return clamped * (discount + staleness * Real(f.unsent_rate));
    } else {
      return Real(f.sent) * discount + Real(f.unsent) * (staleness * Real(f.unsent_rate));
    }
  }

 private:
  // min(1, ‖p‖/‖w‖), with ‖w‖² = sent² Σ (s c u)² + 2 sent unsent Σ s (1 − s) (c u)² + unsent² Σ ((1 − s) c u)².
  SLAMB_HOST_DEVICE static double cap_of([[maybe_unused]] const double* sums, [[maybe_unused]] double sent,
                                         [[maybe_unused]] double unsent) {
    if constexpr (Capped) {
      const double mixed = sums[5] > 0.0 ? sums[6] - sums[4] - sums[5] : 0.0;
      const double squared = sent * sent * sums[4] + sent * unsent * mixed + unsent * unsent * sums[5];
      return detail::clamp(detail::norm_ratio(sums[0] + sums[2], squared, 1.0), 0.0, 1.0);
    } else {
      return 1.0;
    }
  }
};

/// *mean_step*: LAMB's ratio, of the step that the ranks make together. φ = clamp(‖p‖/‖ū‖, lower, upper), with ‖p‖/‖ū‖ = 1 if either norm is 0, where ū is the mean of the ranks' updates. So a
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
template <>
struct rescaled_trust_ratio<rescaling::mean_step, false> {
  double lower = 0.0;
  double upper = std::numeric_limits<double>::infinity();

  static constexpr int sums_per_segment = 5;  // ‖p‖²; of M: ‖u‖², ‖w̄‖², ‖w‖² before the exchange; of ¬M: ‖u‖²
  static constexpr bool ignores_staleness = true;

  struct segment_factors {
    float ratio;
  };

  /// @throws std::invalid_argument
  void validate() const { detail::require_clamp("rescaled_trust_ratio", lower, upper); }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("rescaled_trust_ratio's lower", lower);
    fields.add("rescaled_trust_ratio's upper", upper);
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

  SLAMB_HOST_DEVICE segment_factors factors(const double* sums, tensor_properties properties) const {
    if (!properties.adapt) return {1.0F};
    const bool is_known = sums[2] > 0.0 && sums[3] > 0.0;
    const double eta_squared = is_known ? detail::clamp(sums[2] / sums[3], 1.0 / properties.world, 1.0) : 1.0;
    const double of_mean_step = sums[1] + eta_squared * sums[4];
    return {static_cast<float>(detail::clamp(detail::norm_ratio(sums[0], of_mean_step, 1.0), lower, upper))};
  }

  template <class Real>
  SLAMB_ELEMENT Real scale(segment_factors factors, const Real& /*staleness discount*/) const {
    return Real(factors.ratio);
  }
};

static_assert(trust_ratio<rescaled_trust_ratio<rescaling::product>>);
static_assert(trust_ratio<rescaled_trust_ratio<rescaling::blend>>);
static_assert(capability::looks_at_staleness<rescaled_trust_ratio<rescaling::product, true>> &&
              !capability::looks_at_staleness<rescaled_trust_ratio<rescaling::product>>);
static_assert(capability::looks_before_exchange<rescaled_trust_ratio<rescaling::mean_step>> &&
              capability::ignores_staleness<rescaled_trust_ratio<rescaling::mean_step>>);

}  // namespace slamb
