// The values that the shipped quantizers make of single numbers. quantizer.cpp tests their common properties.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "slamb/compressor/floating.hpp"
#include "slamb/compressor/four_levels.hpp"
#include "slamb/compressor/integer.hpp"
#include "slamb/compressor/natural.hpp"
#include "slamb/compressor/sign.hpp"
#include "support/described.hpp"
#include "support/generate.hpp"
#include "support/nearest.hpp"

namespace compressor_quantizer_values_tests {
namespace {

using test_support::random_source;
using test_support::refusal;
using test_support::told_apart_by;

constexpr float largest = std::numeric_limits<float>::max();
constexpr float smallest = std::numeric_limits<float>::denorm_min();

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

template <class Q>
std::uint32_t code_of(const Q& q, float x, float scale, float uniform) {
  return q.encode(x, scale, uniform);
}

template <class Q>
float decoded(const Q& q, float x, float scale, float uniform) {
  return q.template decode<float>(code_of(q, x, scale, uniform), scale);
}

/// (r + ½)/2^16.
float draw(std::uint32_t r) { return (static_cast<float>(r) + 0.5F) * 0x1p-16F; }

/// True if x decodes to `value` with every draw.
template <class Q>
bool always(const Q& q, float x, float scale, float value) {
  for (std::uint32_t r = 0; r < 0x10000U; ++r)
    if (bits_of(decoded(q, x, scale, draw(r))) != bits_of(value)) return false;
  return true;
}

/// Floats of every exponent and sign around the ties of a format that drops `dropped` bits, and random ones.
std::vector<float> floats_about_ties(std::uint32_t dropped) {
  std::vector<float> all;
  random_source source(8, dropped);
  const std::uint32_t half = 1U << (dropped - 1U), mask = 2U * half - 1U;
  for (std::uint32_t upper = 0; upper < 0x200U; ++upper) {
    if ((upper & 0xFFU) == 0xFFU) continue;
    for (int n = 0; n < 100; ++n) {
      const auto mantissa = static_cast<std::uint32_t>(source.next()) & 0x7FFFFFU;
      for (const std::uint32_t lower : {0U, half - 1U, half, half + 1U, mask, mantissa & mask})
        all.push_back(std::bit_cast<float>(upper << 23U | (n == 0 ? 0x7FFFFFU & ~mask : mantissa & ~mask) | lower));
    }
  }
  return all;
}

/// The number of these floats that a quantizer does not round to the nearest of a format.
template <class Q>
std::size_t wrongly_rounded(const Q& q, const test_support::number_format& format, std::uint32_t dropped) {
  std::size_t wrong_ones = 0;
  for (const float x : floats_about_ties(dropped)) {
    const auto nearest = static_cast<float>(test_support::nearest(format, static_cast<double>(x)));
    wrong_ones += bits_of(decoded(q, x, 1.0F, 0.5F)) == bits_of(nearest) ? 0 : 1;
  }
  return wrong_ones;
}

}  // namespace

TEST_CASE("sign: encodes both zeros as 1, and decodes to the scale with the sign") {
  const slamb::sign q;
  CHECK(code_of(q, 0.0F, 1.0F, 0.5F) == 1);
  CHECK(code_of(q, -0.0F, 1.0F, 0.5F) == 1);
  CHECK(code_of(q, smallest, 1.0F, 0.5F) == 1);
  CHECK(code_of(q, -smallest, 1.0F, 0.5F) == 0);
  CHECK(q.decode<float>(1, 2.5F) == 2.5F);
  CHECK(q.decode<float>(0, 2.5F) == -2.5F);
  CHECK(told_apart_by(q, slamb::sign{.scales = slamb::scale_sharing::per_tensor}) ==
        "sign's scales (0: fused, 1: per tensor)");
  CHECK(told_apart_by(q, slamb::sign{.zero_aware = true}) == "sign's zero_aware");
  CHECK(told_apart_by(q, q) == "no field");
}

TEST_CASE("four_levels: half or twice the scale, from five quarters of it on") {
  const slamb::four_levels q;
  for (const float scale : {1.0F, 0.1F, 3.3e-20F, 7e30F}) {
    CAPTURE(scale);
    const float threshold = 1.25F * scale;
    CHECK(decoded(q, 0.0F, scale, 0.5F) == 0.5F * scale);
    CHECK(decoded(q, -0.0F, scale, 0.5F) == 0.5F * scale);
    CHECK(decoded(q, -smallest, scale, 0.5F) == -0.5F * scale);
    CHECK(decoded(q, std::nextafter(threshold, 0.0F), scale, 0.5F) == 0.5F * scale);
    CHECK(decoded(q, threshold, scale, 0.5F) == 2.0F * scale);
    CHECK(decoded(q, -threshold, scale, 0.5F) == -2.0F * scale);
  }
  CHECK(code_of(q, 0.0F, 0.0F, 0.5F) == 1);
  CHECK(q.decode<float>(1, 0.0F) == 0.0F);
  CHECK(told_apart_by(q, slamb::four_levels{.block = 128}) == "four_levels' block");
  CHECK(told_apart_by(q, slamb::four_levels{.zero_aware = true}) == "four_levels' zero_aware");
}

TEST_CASE("four_levels: names the mistake in a block") {
  for (const std::uint32_t size : {0U, 8U, 24U, 2048U})
    CHECK(refusal(slamb::four_levels{.block = size}).find("four_levels' block = " + std::to_string(size)) !=
          std::string::npos);
  for (const std::uint32_t size : {16U, 256U, 1024U})
    CHECK(refusal(slamb::four_levels{.block = size}) == "nothing was thrown");
}

TEST_CASE("four_levels: the error is bounded by the norms of the signal") {
  struct sums {
    double signal, error, bound;
  };
  const auto sums_of = [](const std::vector<float>& all) {
    double magnitudes = 0.0, signal = 0.0, error = 0.0;
    for (const float x : all) {
      magnitudes += std::abs(static_cast<double>(x));
      signal += static_cast<double>(x) * static_cast<double>(x);
    }
    const double scale = std::sqrt(signal / static_cast<double>(all.size()));
    for (const float x : all) {
      const double value = static_cast<double>(decoded(slamb::four_levels{}, x, static_cast<float>(scale), 0.5F));
      error += (static_cast<double>(x) - value) * (static_cast<double>(x) - value);
    }
    return sums{signal, error, 1.25 * signal - magnitudes * scale};  // compressors.md (20)
  };
  test_support::random_source source(5);
  for (int power = 1; power <= 9; power += 2) {  // from a normal distribution to one with few large elements
    std::vector<float> all(4096);
    for (float& x : all) x = static_cast<float>(std::pow(source.bell(), power));
    const sums of = sums_of(all);
    CHECK(of.error <= of.bound * (1.0 + 1e-5));
    if (power == 1) CHECK(of.error <= 0.17 * of.signal);
  }
  const sums equal = sums_of(std::vector<float>(64, 1.0F));  // on inner levels alone the bound is met
  CHECK(equal.error == equal.bound);
}

TEST_CASE("integer: zero and the largest of a block are exact for every draw") {
  for (const float scale : {1.0F, 0.1F, 3.3e-20F, 7e30F, largest, smallest}) {
    CAPTURE(scale);
    CHECK(always(slamb::int8{}, scale, scale, scale));
    CHECK(always(slamb::int8{}, -scale, scale, -scale));
    CHECK(always(slamb::int4{}, scale, scale, scale));
    CHECK(always(slamb::integer<2>{}, -scale, scale, -scale));
    CHECK(always(slamb::int8{}, 0.0F, scale, 0.0F));
    CHECK(always(slamb::int4{}, -0.0F, scale, 0.0F));
  }
  CHECK_FALSE(always(slamb::int8{}, 0.5F, 1.0F, 0.5F));
}

TEST_CASE("integer: a scale that is too small saturates, and a scale of 0 decodes to zeros") {
  const slamb::int8 q;
  CHECK(always(q, 5.0F, 1.0F, 1.0F));
  CHECK(always(q, -largest, smallest, -smallest));
  CHECK(always(q, 0.0F, 0.0F, 0.0F));
  CHECK(code_of(q, std::numeric_limits<float>::infinity(), 1.0F, 0.5F) == 254);
  CHECK(code_of(q, std::numeric_limits<float>::quiet_NaN(), 1.0F, 0.5F) <= 254);
}

TEST_CASE("integer: names the mistake in a block, and the settings that ranks must agree on") {
  for (const std::uint32_t size : {0U, 1U, 8U, 24U, 100U, 2048U})
    CHECK(refusal(slamb::int8{.block = size}).find("integer's block = " + std::to_string(size)) != std::string::npos);
  for (const std::uint32_t size : {16U, 32U, 64U, 128U, 256U, 512U, 1024U})
    CHECK(refusal(slamb::int4{.block = size}) == "nothing was thrown");
  CHECK(told_apart_by(slamb::int8{}, slamb::int8{.block = 64}) == "integer's block");
  CHECK(told_apart_by(slamb::int8{}, slamb::int8{.seed = std::uint64_t{1} << 63U}) == "integer's seed");
}

TEST_CASE("natural: zero and the powers of two are exact for every draw") {
  const slamb::natural q{.seed = 4};
  CHECK(always(q, 0.0F, 1.0F, 0.0F));
  for (int exponent = slamb::natural::least_exponent; exponent <= slamb::natural::largest_exponent; exponent += 7) {
    const float power = std::ldexp(1.0F, exponent);
    CHECK(always(q, power, 1.0F, power));
    CHECK(always(q, -power, 1.0F, -power));
    CHECK(code_of(q, power, 1.0F, 0.5F) == static_cast<std::uint32_t>(exponent + 97));
    CHECK(code_of(q, -power, 1.0F, 0.5F) == static_cast<std::uint32_t>(exponent + 97 + 128));
  }
  CHECK(told_apart_by(q, slamb::natural{.seed = 5}) == "natural's seed");
}

TEST_CASE("natural: saturates above 2^30, and rounds at random between 0 and 2^-96 below that") {
  const slamb::natural q;
  CHECK(always(q, 0x1.8p30F, 1.0F, 0x1p30F));
  CHECK(always(q, -largest, 1.0F, -0x1p30F));
  std::size_t up = 0;
  for (std::uint32_t r = 0; r < 0x10000U; ++r) {
    const float value = decoded(q, 0x1p-98F, 1.0F, draw(r));
    REQUIRE((value == 0.0F || value == 0x1p-96F));
    up += value == 0.0F ? 0 : 1;
  }
  CHECK(up == 0x4000U);
  CHECK(always(q, smallest, 1.0F, 0.0F));
}

TEST_CASE("floating: rounds to nearest, ties to even, at every exponent") {
  using test_support::bfloat16_format;
  using test_support::binary16_format;
  CHECK(wrongly_rounded(slamb::bf16{}, bfloat16_format, 16) == 0);
  CHECK(wrongly_rounded(slamb::fp16{}, binary16_format, 13) == 0);
  for (int bits = 14; bits <= 24; ++bits) {  // the ties of subnormal numbers
    CAPTURE(bits);
    CHECK(wrongly_rounded(slamb::fp16{}, binary16_format, static_cast<std::uint32_t>(std::min(bits, 23))) == 0);
  }
  CHECK(wrongly_rounded(slamb::bf16{}, binary16_format, 16) > 0);
  auto other = binary16_format;
  other.largest = 65536.0;
  CHECK(wrongly_rounded(slamb::fp16{}, other, 13) > 0);
  other = binary16_format;
  other.least_exponent = -13;
  CHECK(wrongly_rounded(slamb::fp16{}, other, 13) > 0);
}

TEST_CASE("floating: the codes of fp16 are those of IEEE 754") {
  const slamb::fp16 q;
  CHECK(code_of(q, 1.0F, 1.0F, 0.5F) == 0x3C00U);
  CHECK(code_of(q, -2.0F, 1.0F, 0.5F) == 0xC000U);
  CHECK(code_of(q, 65504.0F, 1.0F, 0.5F) == 0x7BFFU);
  CHECK(code_of(q, largest, 1.0F, 0.5F) == 0x7BFFU);
  CHECK(code_of(q, 0x1p-24F, 1.0F, 0.5F) == 0x0001U);
  CHECK(code_of(q, 0x1p-25F, 1.0F, 0.5F) == 0x0000U);
  CHECK(code_of(q, 0x1.FF8p-15F, 1.0F, 0.5F) == 0x03FFU);
  CHECK(code_of(q, -0.0F, 1.0F, 0.5F) == 0x8000U);
  for (std::uint32_t code = 0; code < 0x10000U; ++code) {
    const auto exponent = static_cast<int>(code >> 10U & 31U);
    if (exponent == 31) continue;
    const double mantissa = (code & 0x3FFU) / 1024.0;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1.0 + mantissa, exponent - 15);
    const auto value = static_cast<float>((code & 0x8000U) != 0 ? -magnitude : magnitude);
    REQUIRE(bits_of(q.decode<float>(code, 1.0F)) == bits_of(value));
    REQUIRE(code_of(q, value, 1.0F, 0.5F) == code);
  }
}

}  // namespace compressor_quantizer_values_tests
