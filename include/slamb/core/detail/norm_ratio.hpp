// Ratios of norms and clamps, for trust ratios.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// The largest ratio. If a gradient becomes zero, ‖u‖ decays to denormals and ‖p‖/‖u‖ would exceed every float.
inline constexpr double largest_ratio = 3e38;

/// ‖a‖/‖b‖ from the squares of the norms, or `otherwise` if either is 0.
SLAMB_HOST_DEVICE inline double norm_ratio(double a_squared, double b_squared, double otherwise) {
  if (!(a_squared > 0.0 && b_squared > 0.0)) return otherwise;
  const double ratio = sqrt(a_squared) / sqrt(b_squared);
  return ratio < largest_ratio ? ratio : largest_ratio;
}

SLAMB_HOST_DEVICE inline double clamp(double x, double lower, double upper) {
  const double raised = x < lower ? lower : x;
  return raised > upper ? upper : raised;
}

inline void require_clamp(std::string_view policy, double lower, double upper) {
  const std::string name(policy);
  require_non_negative(name + "'s lower", lower);
  require_in(upper >= lower, name + "'s upper", upper, "at least lower = " + to_text(lower));
}

}  // namespace slamb::detail
