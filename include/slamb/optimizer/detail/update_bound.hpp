// The bound of an element's direction, m̂/(√v̂ + ε), that Adam obeys by itself: docs/algorithms/update_bound.md.
//
// Where m and v are of the same gradients, nothing passes it. Elsewhere an element with a tiny v would take a huge step, and in a
// trust ratio it would take the step of its whole tensor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

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
  double chosen = no_update_bound;  ///< the option `update_bound`: B > 0; 0: Adam's own; ∞: off
  double own = no_update_bound;     ///< Adam's own, B of (2) in update_bound.md
  double part = 0.0;  ///< 1 − β2^T of a v that has stopped after T gradients; 0: it takes every gradient

  /// B, or B_t of (3) … (5) in update_bound.md.
  ///
  /// @param t              the steps so far, ≥ 1
  /// @param corrects_bias  m̂ and v̂ are corrected for their start at 0
  SLAMB_HOST_DEVICE double at(double t, double beta1, double beta2, bool corrects_bias) const {
    if (chosen != 0.0) return chosen;
    if (part != 0.0) return own / sqrt(part);
    return corrects_bias ? own * sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t)) : own;
  }
};

/// The gradients of a variance.
struct variance_properties {
  std::uint64_t stopped = 0;  ///< it has stopped after so many; 0: it takes every one
  bool has_late = false;      ///< some elements have begun late, or have not begun
};

/// True if an element without a variance may begin one once v has stopped.
template <class Options>
bool lets_elements_begin(const Options& o) {
  if constexpr (requires { o.update_bound; })
    return o.update_bound < no_update_bound;
  else
    return false;
}

/// Adam's own bound of moments that were made with several β, as `set_options` allows: the widest of their bounds holds. What v
/// lacks when it stops is a matter of the β2 of then.
class own_bound {
 public:
  /// The bound with these options from now on. None in a recipe whose m and v are of the same gradients.
  template <class Options>
  update_bound with(const Options& o, std::uint64_t variance_stopped) {
    if constexpr (requires { o.update_bound; }) {
      widest_ = std::max(widest_, of(o.beta1, o.beta2));
      if (std::exchange(stopped_, variance_stopped) != variance_stopped)
        part_ = 1.0 - std::pow(o.beta2, static_cast<double>(variance_stopped));
      return {o.update_bound, widest_, part_};
    } else {
      return {};
    }
  }

 private:
  // (2) in update_bound.md
  static double of(double beta1, double beta2) {
    const double ratio = beta1 * beta1 / beta2;
    if (!(ratio < 1.0)) return no_update_bound;
    // Moments are rounded to floats in every step. A direction at the bound must not be changed for it.
    constexpr double rounding = 1.0 + 0x1p-16;
    return rounding * (1.0 - beta1) / std::sqrt((1.0 - beta2) * (1.0 - ratio));
  }

  double widest_ = 0.0;
  std::uint64_t stopped_ = 0;
  double part_ = 0.0;
};

/// @throws std::invalid_argument
inline void require_update_bound(double bound) {
  using limits = std::numeric_limits<float>;
  const bool is_number = bound >= static_cast<double>(limits::min()) && bound <= static_cast<double>(limits::max());
  require_in(is_number || bound == 0.0 || bound == no_update_bound, "update_bound", bound,
             "in [1.2e-38, 3.4e38], or 0 for Adam's own bound, or inf for none");
}

}  // namespace slamb::detail
