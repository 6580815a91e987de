// The few functions of real numbers that element functions may use beside operators.
//
// An element function is a template over Real: float on a device, a vector of floats on the host. Say `using
// slamb::minimum;` and call `minimum(a, b)`: overloads for vectors are found by argument-dependent lookup.
#pragma once

#include <cmath>

#include "slamb/core/config.hpp"

namespace slamb {

/// √x.
SLAMB_HOST_DEVICE inline float square_root(float x) { return sqrtf(x); }
/// `yes` where the condition holds, else `no`; for vectors, element by element.
SLAMB_HOST_DEVICE inline float select(bool condition, float yes, float no) { return condition ? yes : no; }
/// The smaller of two.
SLAMB_HOST_DEVICE inline float minimum(float a, float b) { return b < a ? b : a; }
/// The larger of two.
SLAMB_HOST_DEVICE inline float maximum(float a, float b) { return a < b ? b : a; }

}  // namespace slamb
