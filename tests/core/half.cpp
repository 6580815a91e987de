// half: conversions compared with rounding in double precision and with all 2^16 numbers.
#include "slamb/core/half.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "support/generate.hpp"
#include "support/nearest.hpp"

namespace core_half_tests {
namespace {

using slamb::detail::half_bits;
using slamb::detail::real_of_half_bits;
using slamb::detail::host::f32x16;
using slamb::detail::host::u32x16;
constexpr std::uint32_t lanes = slamb::detail::host::lanes;

/// The value of a half with these bits, from IEEE 754's definition.
double value_of(std::uint32_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>(bits >> 10 & 31U);
  const double mantissa = bits & 1023U;
  if (exponent == 31)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25));
}

/// Floats of every exponent and both signs, with mantissas around the ties of halves.
std::vector<float> all_floats() {
  std::vector<float> all;
  test_support::random_source source(2);
  for (std::uint32_t exponent = 0; exponent < 512; ++exponent)
    for (std::uint32_t upper = 0; upper<1024; upper += exponent % 256> 90 && exponent % 256 < 150 ? 1 : 93)
      for (const std::uint32_t lower :
           {0U, 1U, 0xFFFU, 0x1000U, 0x1001U, 0x1FFFU, static_cast<std::uint32_t>(source.below(0x2000))})
        all.push_back(std::bit_cast<float>(exponent << 23 | upper << 13 | lower));
  while (all.size() % lanes != 0) all.push_back(1.0F);
  return all;
}

/// As IEEE 754: what lies half a step or more beyond the largest number becomes infinity.
double rounded(const test_support::number_format& format, double x) {
  if (std::abs(x) >= format.largest + std::ldexp(1.0, 15 - format.precision))
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  return test_support::nearest(format, x);
}

std::size_t differences(const test_support::number_format& format) {
  std::size_t different = 0;
  for (const float x : all_floats()) {
    const double back = value_of(half_bits(x));
    const bool is_same = std::isnan(x) ? std::isnan(back) : back == rounded(format, static_cast<double>(x));
    different += is_same && (half_bits(x) >> 15 & 1U) == (std::signbit(x) ? 1U : 0U) ? 0 : 1;
  }
  return different;
}

}  // namespace

TEST_CASE("half: rounds to nearest, ties to even, and to infinity from 65520 on") {
  CHECK(differences(test_support::binary16_format) == 0);
  CHECK(half_bits(65504.0F) == 0x7BFFU);
  CHECK(half_bits(std::nextafter(65520.0F, 0.0F)) == 0x7BFFU);
  CHECK(half_bits(65520.0F) == 0x7C00U);
  CHECK(half_bits(-1e30F) == 0xFC00U);
  CHECK(half_bits(0x1p-24F) == 1U);
  CHECK(half_bits(0x1p-25F) == 0U);  // a tie, to even
  CHECK(half_bits(0x1.8p-24F) == 2U);
  CHECK(half_bits(-0.0F) == 0x8000U);
  CHECK(half_bits(std::numeric_limits<float>::denorm_min()) == 0U);
}

TEST_CASE("half: the comparison finds another format") {
  auto other = test_support::binary16_format;
  other.precision = 10;
  CHECK(differences(other) > 0);
  other = test_support::binary16_format;
  other.least_exponent = -13;
  CHECK(differences(other) > 0);
  other = test_support::binary16_format;
  other.largest = 65472.0;
  CHECK(differences(other) > 0);
}

TEST_CASE("half: every value is exact in float, and survives the way back") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float x = real_of_half_bits<float>(bits);
    const double expected = value_of(bits);
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(x));
      REQUIRE(std::isnan(real_of_half_bits<float>(half_bits(x))));
    } else {
      REQUIRE(static_cast<double>(x) == expected);
      REQUIRE(half_bits(x) == bits);
    }
  }
}

TEST_CASE("half: vectors convert as single numbers do") {
  const std::vector<float> all = all_floats();
  std::uint32_t bits[lanes];
  float back[lanes];
  for (std::size_t i = 0; i < all.size(); i += lanes) {
    const u32x16 converted = half_bits(f32x16::load(all.data() + i));
    converted.store(bits);
    real_of_half_bits<f32x16>(converted).store(back);
    for (std::uint32_t j = 0; j < lanes; ++j) {
      REQUIRE(bits[j] == half_bits(all[i + j]));
      REQUIRE(std::bit_cast<std::uint32_t>(back[j]) == std::bit_cast<std::uint32_t>(real_of_half_bits<float>(bits[j])));
    }
  }
}

}  // namespace core_half_tests
