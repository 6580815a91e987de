// bfloat16: conversions compared with rounding in double precision, and arrays compared with one number at a time.
#include "slamb/core/bfloat16.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "slamb/backend/host/detail/storage.hpp"
#include "support/generate.hpp"
#include "support/nearest.hpp"

namespace core_bfloat16_tests {
namespace {

using slamb::bfloat16;
using slamb::detail::to_bfloat16;
using slamb::detail::to_float;
using slamb::detail::host::f32x16;
constexpr std::size_t lanes = slamb::detail::host::lanes;

/// Finite floats of every exponent and both signs, with mantissas around the ties, and random ones.
std::vector<float> finite_floats() {
  std::vector<float> all;
  test_support::random_source source(1);
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    if ((upper & 0x7F80U) == 0x7F80U) continue;
    if ((upper & 0x7FU) > 2 && (upper & 0x7FU) < 0x7D) continue;
    for (const std::uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      all.push_back(std::bit_cast<float>(upper << 16U | lower));
    all.push_back(std::bit_cast<float>(upper << 16U | static_cast<std::uint32_t>(source.below(0x10000))));
  }
  while (all.size() % lanes != 0) all.push_back(1.0F);
  return all;
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// The number of `inputs` that are rounded differently from `rounded`.
template <class Rounded>
std::size_t differences(Rounded rounded) {
  std::size_t different = 0;
  for (const float x : finite_floats())
    different +=
        bits_of(to_float(to_bfloat16(x))) == bits_of(static_cast<float>(rounded(static_cast<double>(x)))) ? 0 : 1;
  return different;
}

}  // namespace

TEST_CASE("bfloat16: rounds to nearest, ties to even, and never beyond the largest") {
  const auto expected = [](double x) { return test_support::nearest(test_support::bfloat16_format, x); };
  CHECK(differences(expected) == 0);
  CHECK(to_float(to_bfloat16(std::numeric_limits<float>::max())) == 0x1.FEp127F);
  CHECK(to_float(to_bfloat16(1.0F + 0x1p-8F)) == 1.0F);
  CHECK(to_float(to_bfloat16(1.0F + 0x3p-8F)) == 1.0F + 0x1p-6F);
}

TEST_CASE("bfloat16: the comparison finds a format with one bit less, other subnormals, or another largest value") {
  using test_support::bfloat16_format;
  using test_support::nearest;
  auto other = bfloat16_format;
  other.precision = 7;
  CHECK(differences([&](double x) { return nearest(other, x); }) > 0);
  other = bfloat16_format;
  other.least_exponent = -125;
  CHECK(differences([&](double x) { return nearest(other, x); }) > 0);
  other = bfloat16_format;
  other.largest = 0x1.FCp127;
  CHECK(differences([&](double x) { return nearest(other, x); }) > 0);
  CHECK(differences([&](double x) { return nearest(bfloat16_format, std::abs(x)); }) > 0);
}

TEST_CASE("bfloat16: every value survives the conversion to float and back") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float x = to_float(bfloat16{static_cast<std::uint16_t>(bits)});
    REQUIRE(bits_of(x) == bits << 16U);
    if (!std::isnan(x)) REQUIRE(to_bfloat16(x).bits == bits);
  }
}

TEST_CASE("bfloat16: keeps infinities and NaN") {
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK(to_float(to_bfloat16(infinite)) == infinite);
  CHECK(to_float(to_bfloat16(-infinite)) == -infinite);
  for (const std::uint32_t bits : {0x7FC00000U, 0x7F800001U, 0x7FFFFFFFU, 0xFF80FFFFU, 0xFFFFFFFFU})
    CHECK(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(bits)))));
}

TEST_CASE("bfloat16: arrays are stored like single numbers, at any address, and nothing is written past them") {
  std::vector<float> inputs = finite_floats();
  inputs[5] = std::numeric_limits<float>::infinity();
  inputs[6] = -std::numeric_limits<float>::infinity();
  constexpr bfloat16 untouched{0x1234};
  for (std::size_t first = 0; first + lanes <= inputs.size(); first += lanes) {
    const int count = static_cast<int>(first / lanes % (lanes + 1));
    std::array<bfloat16, lanes + 2> whole{}, part{};
    whole.fill(untouched);
    part.fill(untouched);
    const f32x16 x = f32x16::load(inputs.data() + first);
    slamb::detail::host::store_floats(x, whole.data() + 1);
    slamb::detail::host::store_floats(x, part.data() + 1, count);
    REQUIRE(whole.front().bits == untouched.bits);
    REQUIRE(whole.back().bits == untouched.bits);
    REQUIRE(part.front().bits == untouched.bits);
    for (std::size_t i = 0; i < lanes + 1; ++i) {
      const std::uint16_t expected = i < lanes ? to_bfloat16(inputs[first + i]).bits : untouched.bits;
      REQUIRE(whole[i + 1].bits == expected);
      REQUIRE(part[i + 1].bits == (i < static_cast<std::size_t>(count) ? expected : untouched.bits));
    }
    std::array<float, lanes> back{}, back_part{};
    slamb::detail::host::load_floats(whole.data() + 1).store(back.data());
    slamb::detail::host::load_floats(whole.data() + 1, count).store(back_part.data());
    for (std::size_t i = 0; i < lanes; ++i) {
      REQUIRE(bits_of(back[i]) == bits_of(to_float(whole[i + 1])));
      REQUIRE(bits_of(back_part[i]) == (i < static_cast<std::size_t>(count) ? bits_of(back[i]) : 0U));
    }
  }
}

TEST_CASE("storage: arrays of floats have the same functions, bit for bit") {
  const std::vector<float> inputs = finite_floats();
  std::array<float, lanes> whole{}, part{};
  slamb::detail::host::store_floats(slamb::detail::host::load_floats(inputs.data()), whole.data());
  slamb::detail::host::store_floats(slamb::detail::host::load_floats(inputs.data(), 5), part.data(), 7);
  for (std::size_t i = 0; i < lanes; ++i) {
    CHECK(bits_of(whole[i]) == bits_of(inputs[i]));
    CHECK(bits_of(part[i]) == (i < 5 ? bits_of(inputs[i]) : 0U));
  }
}

}  // namespace core_bfloat16_tests
