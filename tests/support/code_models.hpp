// Models of the quantizers' codes, in double precision. They follow the definitions in docs/algorithms/compressors.md and call
// none of the quantizers' functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "support/nearest.hpp"

namespace test_support {

/// A closed interval of numbers.
struct number_range {
  double low = 0.0;
  double high = 0.0;
};

/// A model of one quantizer: the value of a code, and the values that an encoded x may decode to. The bounds in `become` grow
/// with x.
struct code_model {
  int bits;
  double (*decoded)(std::uint32_t code, double scale);
  number_range (*become)(double x, double scale);
};

namespace code_models {

// Relative distance to a threshold below which single precision may choose the other side.
inline constexpr double margin = 1e-6;

/// The interval `magnitudes` of |x|, with the sign of x.
inline number_range with_sign_of(double x, number_range magnitudes) {
  return x < 0.0 ? number_range{-magnitudes.high, -magnitudes.low} : magnitudes;
}

/// Two levels of |x|: `lower` below the threshold, `upper` from it on.
inline number_range two_levels(double x, double threshold, double lower, double upper) {
  const double magnitude = std::abs(x);
  return with_sign_of(x, {magnitude <= threshold * (1.0 + margin) ? lower : upper,
                          magnitude >= threshold * (1.0 - margin) ? upper : lower});
}

inline constexpr code_model sign{1, [](std::uint32_t code, double scale) { return code == 0 ? -scale : scale; },
                                 [](double x, double scale) {
                                   return number_range{x >= 0.0 ? scale : -scale, x >= 0.0 ? scale : -scale};
                                 }};

inline constexpr code_model four_levels{
    2,
    [](std::uint32_t code, double scale) {
      const double magnitude = (code % 2 == 0 ? 0.5 : 2.0) * scale;
      return code < 2 ? magnitude : -magnitude;
    },
    [](double x, double scale) { return two_levels(x, 1.25 * scale, 0.5 * scale, 2.0 * scale); }};

template <int Bits>
inline constexpr code_model integer{
    Bits,
    [](std::uint32_t code, double scale) {
      constexpr int levels = (1 << (Bits - 1)) - 1;
      return (static_cast<double>(code) - levels) / levels * scale;
    },
    [](double x, double scale) {
      if (scale == 0.0) return number_range{};
      constexpr double levels = (1 << (Bits - 1)) - 1;
      const double level = std::min(levels, std::abs(x) / scale * levels);
      return with_sign_of(x, {std::floor(level) / levels * scale, std::ceil(level) / levels * scale});
    }};

inline constexpr code_model natural{8,
                                    [](std::uint32_t code, double /*scale*/) {
                                      const std::uint32_t exponent = code & 0x7FU;
                                      const double magnitude =
                                          exponent == 0 ? 0.0 : std::ldexp(1.0, static_cast<int>(exponent) - 97);
                                      return (code & 0x80U) != 0 ? -magnitude : magnitude;
                                    },
                                    [](double x, double /*scale*/) {
                                      const double magnitude = std::abs(x);
                                      if (magnitude >= 0x1p30) return with_sign_of(x, {0x1p30, 0x1p30});
                                      if (magnitude < 0x1p-96)
                                        return with_sign_of(x, {0.0, magnitude == 0.0 ? 0.0 : 0x1p-96});
                                      const double lower = std::ldexp(1.0, std::ilogb(magnitude));
                                      return with_sign_of(x, {lower, magnitude == lower ? lower : 2.0 * lower});
                                    }};

/// The value of a code with a sign, an exponent and a mantissa of the given numbers of bits.
inline double of_floating_bits(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa =
      static_cast<double>(code & ((1U << mantissa_bits) - 1U)) + (exponent == 0 ? 0.0 : std::ldexp(1.0, mantissa_bits));
  const double magnitude = std::ldexp(mantissa, std::max(exponent, 1) - bias - mantissa_bits);
  return (code >> (exponent_bits + mantissa_bits) & 1U) != 0 ? -magnitude : magnitude;
}

inline constexpr code_model bf16{16, [](std::uint32_t code, double /*scale*/) { return of_floating_bits(code, 8, 7); },
                                 [](double x, double /*scale*/) {
                                   return number_range{nearest(bfloat16_format, x), nearest(bfloat16_format, x)};
                                 }};

inline constexpr code_model fp16{16, [](std::uint32_t code, double /*scale*/) { return of_floating_bits(code, 5, 10); },
                                 [](double x, double /*scale*/) {
                                   return number_range{nearest(binary16_format, x), nearest(binary16_format, x)};
                                 }};

inline constexpr code_model archetype_ternary{
    2, [](std::uint32_t code, double scale) { return code == 0   ? 0.0
                                                     : code == 1 ? -1.25 * scale
                                                                 : 1.25 * scale; },
    [](double x, double scale) { return two_levels(x, 0.75 * scale, 0.0, 1.25 * scale); }};

inline constexpr code_model archetype_levels{
    4, [](std::uint32_t code, double scale) { return (static_cast<double>(code) - 7.0) / 8.0 * scale; },
    [](double x, double scale) {
      if (scale == 0.0) return number_range{};
      const double level = std::clamp(8.0 * x / scale + 7.0, 0.0, 15.0);
      return number_range{(std::floor(level - 16.0 * margin) - 7.0) / 8.0 * scale,
                          (std::ceil(level + 16.0 * margin) - 7.0) / 8.0 * scale};
    }};

inline constexpr code_model archetype_blocks{
    2,
    [](std::uint32_t code, double scale) {
      return ((code & 2U) != 0 ? 1.5 : 0.5) * ((code & 1U) != 0 ? -scale : scale);
    },
    [](double x, double scale) { return two_levels(x, scale, 0.5 * scale, 1.5 * scale); }};

inline constexpr code_model archetype_octal{
    3, [](std::uint32_t code, double scale) { return (static_cast<double>(code) - 4.0) / 4.0 * scale; },
    [](double x, double scale) {
      if (scale == 0.0) return number_range{};
      const double level = std::clamp(4.0 * x / scale, -3.0, 3.0) + 0.5;
      return number_range{std::floor(level - 8.0 * margin) / 4.0 * scale,
                          std::floor(level + 8.0 * margin) / 4.0 * scale};
    }};

inline constexpr code_model archetype_floats{
    32, [](std::uint32_t code, double /*scale*/) { return static_cast<double>(std::bit_cast<float>(code)); },
    [](double x, double /*scale*/) {
      return number_range{x, x};
    }};

}  // namespace code_models
}  // namespace test_support
