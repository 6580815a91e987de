// Ratios of norms, for every trust ratio that is made of them.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// The largest ratio: with a gradient that has become zero, ‖u‖ fades to denormals and ‖p‖/‖u‖ beyond every float.
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
