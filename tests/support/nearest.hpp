// Rounding to a floating-point format of few bits, in double precision and from the definition.
#pragma once

#include <algorithm>
#include <cmath>

namespace test_support {

/// A floating-point format: `precision` bits (with the leading one), normal numbers from 2^least_exponent on, and a largest
/// number.
struct number_format {
  int precision;
  int least_exponent;
  double largest;
};

inline const number_format bfloat16_format{8, -126, std::ldexp(255.0, 120)};
inline const number_format binary16_format{11, -14, 65504.0};

/// The number of the format nearest to x; ties go to the even one. Beyond the largest number, the largest. x is finite.
inline double nearest(const number_format& format, double x) {
  if (x == 0.0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent − 1), 2^exponent)
  const int step = std::max(exponent - 1, format.least_exponent) - (format.precision - 1);
  const double scaled = std::ldexp(x, -step);  // exact: x has 24 bits
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) != 0.0)) whole += 1.0;
  const double rounded = std::copysign(std::ldexp(whole, step), x);
  return std::clamp(rounded, -format.largest, format.largest);
}

}  // namespace test_support
