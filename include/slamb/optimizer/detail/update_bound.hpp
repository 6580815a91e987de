// The bound of an element's direction, m̂/(√v̂ + ε), that Adam obeys by itself: docs/algorithms/update_bound.md.
//
// Where m and v are of the same gradients, nothing passes it. Elsewhere an element with a tiny v would take a huge step, and in a
// trust ratio it would take the step of its whole tensor.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

inline constexpr double no_update_bound = std::numeric_limits<double>::infinity();

/// A variance below it counts as none, and a late one is at least half of it.
inline constexpr float least_variance = 0x1p-125F;
/// Below every variance: no element may begin late.
inline constexpr float no_variance_is_late = -std::numeric_limits<float>::infinity();

/// Computes the bound of a step. Trivially copyable; for passes of any backend.
struct update_bound {
  double chosen = no_update_bound;     ///< the option `update_bound`: B > 0; 0: Adam's own; ∞: off
  std::uint64_t variance_stopped = 0;  ///< the gradients that v is made of; 0: of every step so far

  /// B, or B_t of (3) … (5) in update_bound.md.
  ///
  /// @param t              the steps so far, ≥ 1
  /// @param corrects_bias  m̂ and v̂ are corrected for their start at 0
  SLAMB_HOST_DEVICE double at(double t, double beta1, double beta2, bool corrects_bias) const {
    if (chosen != 0.0) return chosen;
    const double ratio = beta1 * beta1 / beta2;
    if (!(ratio < 1.0)) return no_update_bound;
    // Moments are rounded to floats in every step. A direction at the bound must not be changed for it.
    constexpr double rounding = 1.0 + 0x1p-16;
    const double bound = rounding * (1.0 - beta1) / sqrt((1.0 - beta2) * (1.0 - ratio));
    if (variance_stopped != 0) return bound / sqrt(1.0 - pow(beta2, static_cast<double>(variance_stopped)));
    return corrects_bias ? bound * sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t)) : bound;
  }

  /// True if v has stopped, and an element without a variance may begin one.
  SLAMB_HOST_DEVICE bool lets_elements_begin() const { return variance_stopped != 0 && chosen < no_update_bound; }
};

/// The option, or no bound in a recipe whose m and v are of the same gradients.
template <class Options>
update_bound update_bound_of(const Options& o, std::uint64_t variance_stopped) {
  if constexpr (requires { o.update_bound; })
    return {o.update_bound, variance_stopped};
  else
    return {};
}

/// @throws std::invalid_argument
inline void require_update_bound(double bound) {
  using limits = std::numeric_limits<float>;
  const bool is_number = bound >= static_cast<double>(limits::min()) && bound <= static_cast<double>(limits::max());
  require_in(is_number || bound == 0.0 || bound == no_update_bound, "update_bound", bound,
             "in [1.2e-38, 3.4e38], or 0 for Adam's own bound, or inf for none");
}

}  // namespace slamb::detail
