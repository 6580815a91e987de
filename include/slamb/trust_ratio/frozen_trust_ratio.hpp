// 1-bit LAMB's TrustRatio: LAMB's ratio during the warm-up; afterwards its average, corrected for the drift of the variance.
#pragma once

#include <cmath>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/norm_ratio.hpp"
#include "slamb/core/real.hpp"

namespace slamb {

/// Warm-up: c = clamp(‖p‖/‖u‖, lower, upper), and 1 where either norm is 0; c̄ ← β_c c̄ + (1 − β_c) c where c ≠ 1, c̄ = 0 at
/// first.
///
/// Compressed: with D = √v + ε of the frozen variance, D_f = √v_f + ε of the fresh one, w = m/D, u = w + λ p,
///
///     f = max_j D_j/D_f,j;   if λ > 0:  ρ = min(1, ‖w‖/‖u‖),  f ← f ρ + (1 − ρ)
///     f ← clamp(f, factor_lower, factor_upper)
///     f ← clamp(f, (1 − factor_change) f_last, (1 + factor_change) f_last),   f_last = 1 at first
///     rate: c̄ f
///
/// Tensors with `adapt = false` have rate 1 in both phases.
///
/// c̄ is not corrected for its start at 0: the warm-up should be several times 1/(1 − β_c) steps long. A tensor without a ratio
/// of norms keeps c̄ = 0: one whose gradient was always 0, with λ = 0; one with p = 0 at every step; and one whose c was always 1,
/// as a clamp may make it. After the warm-up such a tensor takes c of each step in place of c̄ f. With the bound of updates switched
/// off it does not move, as in the paper.
///
/// *Reference*: 1-bit LAMB, arXiv 2104.06069, algorithm 1.
struct frozen_trust_ratio {
  double lower = 0.01;         ///< lower bound of c
  double upper = 10.0;         ///< upper bound of c
  double average = 0.9;        ///< β_c, in [0, 1)
  double factor_lower = 0.5;   ///< lower bound of f, > 0, because f could not grow again from 0
  double factor_upper = 4.0;   ///< upper bound of f
  double factor_change = 0.1;  ///< the part of f_last by which f may differ from it; 0: f stays 1

  static constexpr bool is_frozen = true;
  static constexpr int sums_per_segment = 2;  // of the warm-up: ‖p‖², ‖u‖²
  static constexpr int frozen_sums = 3;       // of the compressed phase: ‖w‖², ‖u‖², ‖p‖²
  static constexpr int frozen_maxima = 1;     // max D/D_f

  struct segment_factors {
    float ratio;
  };

  /// The state of a tensor.
  struct segment_state {
    float mean_ratio = 0.0F;  ///< c̄
    float factor = 1.0F;      ///< f_last
  };

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_clamp("frozen_trust_ratio", lower, upper);
    detail::require_decay_rate("frozen_trust_ratio's average", average);
    detail::require_positive("frozen_trust_ratio's factor_lower", factor_lower);
    detail::require_in(factor_upper >= factor_lower, "frozen_trust_ratio's factor_upper", factor_upper,
                       "at least factor_lower = " + detail::to_text(factor_lower));
    detail::require_non_negative("frozen_trust_ratio's factor_change", factor_change);
  }

  /// Lists the options that must be equal on all ranks.
  template <class Fields>
  void describe(Fields& fields) const {
    fields.add("frozen_trust_ratio's lower", lower);
    fields.add("frozen_trust_ratio's upper", upper);
    fields.add("frozen_trust_ratio's average", average);
    fields.add("frozen_trust_ratio's factor_lower", factor_lower);
    fields.add("frozen_trust_ratio's factor_upper", factor_upper);
    fields.add("frozen_trust_ratio's factor_change", factor_change);
  }

  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate(const update_terms<Real>& x, bool /*received*/, Sums& sums) const {
    sums.add_square(0, x.parameter);
    sums.add_square(1, x.update);
  }

  /// c of a warm-up step.
  SLAMB_HOST_DEVICE segment_factors factors(const double* sums, tensor_properties properties) const {
    if (!properties.adapt || !(sums[0] > 0.0 && sums[1] > 0.0)) return {1.0F};
    return {static_cast<float>(detail::clamp(detail::norm_ratio(sums[0], sums[1], 1.0), lower, upper))};
  }

  template <class Real>
  SLAMB_ELEMENT Real scale(segment_factors factors, const Real& /*staleness discount*/) const {
    return Real(factors.ratio);
  }

  // The products below are of two floats, exact in double, so that fusing them with a sum changes no bits.

  /// The state after a warm-up step with the factors `warm_up`: c̄ ← β_c c̄ + (1 − β_c) c.
  SLAMB_HOST_DEVICE segment_state averaged(segment_state state, segment_factors warm_up) const {
    if (warm_up.ratio == 1.0F) return state;
    const double fresh = static_cast<double>(static_cast<float>(1.0 - average));
    const double mean = static_cast<double>(state.mean_ratio);
    state.mean_ratio = static_cast<float>((mean - fresh * mean) + fresh * static_cast<double>(warm_up.ratio));
    return state;
  }

  /// Sums and maxima of the compressed phase; `sums.take_maximum(i, x)` raises maximum i of the tensor to x.
  ///
  /// @param deviation_ratio  D/D_f
  template <class Real, class Sums>
  SLAMB_ELEMENT void accumulate_frozen(const update_terms<Real>& x, const Real& deviation_ratio, Sums& sums) const {
    sums.add_square(0, x.direction);
    sums.add_square(1, x.update);
    sums.add_square(2, x.parameter);
    sums.take_maximum(0, deviation_ratio);
  }

  /// c̄ f of a compressed step. Called once per tensor and step.
  ///
  /// @param state   f_last becomes f
  /// @param sums    [frozen_sums]
  /// @param maxima  [frozen_maxima], floats
  SLAMB_HOST_DEVICE segment_factors frozen_factors(segment_state& state, const double* sums, const double* maxima,
                                                   tensor_properties properties) const {
    if (!properties.adapt) return {1.0F};
    // A tensor that had no ratio in the warm-up has no average: it takes that of each step, as LAMB does.
    if (properties.may_begin_late && state.mean_ratio == 0.0F) {
      const double of_step[] = {sums[2], sums[1]};
      return factors(of_step, properties);
    }
    const auto unmixed = static_cast<double>(static_cast<float>(maxima[0]));
    const auto rho = static_cast<double>(properties.weight_decay > 0.0F ? part_of_gradient(sums[0], sums[1]) : 1.0F);
    const double factor = detail::clamp(unmixed * rho + (1.0 - rho), factor_lower, factor_upper);
    const auto last = static_cast<double>(state.factor);
    state.factor =
        static_cast<float>(detail::clamp(factor, (1.0 - factor_change) * last, (1.0 + factor_change) * last));
    const double rate = static_cast<double>(state.mean_ratio) * static_cast<double>(state.factor);
    return {static_cast<float>(detail::clamp(rate, 0.0, detail::largest_ratio))};
  }

 private:
  // ρ = min(1, ‖w‖/‖u‖); 1 where u, and so the update, is 0.
  SLAMB_HOST_DEVICE static float part_of_gradient(double w_squared, double u_squared) {
    const double ratio = u_squared > 0.0 ? sqrt(w_squared) / sqrt(u_squared) : 1.0;
    return ratio < 1.0 ? static_cast<float>(ratio) : 1.0F;
  }
};

static_assert(trust_ratio<frozen_trust_ratio>);

}  // namespace slamb
