// Eight bits a number: the maps as the paper constructs them, and rounding by chance, whose mean must be the number itself.
#include "slamb/core/detail/eight_bits.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/core/random.hpp"
#include "support/generate.hpp"

namespace core_eight_bits_tests {
namespace {

using slamb::detail::dynamic_map;
using one_real = slamb::detail::cuda::reals<1>;
using slamb::detail::host::f32x16;
using slamb::detail::host::u32x16;
constexpr std::uint32_t lanes = slamb::detail::host::lanes;

/// The numbers of codes 0 … last as arXiv 2110.02861 constructs them: in each power of ten, the middles between equally spaced
/// boundaries from 0.1 to 1. The paper's number 1 is left out. The unsigned map has one power of ten more, with one number.
std::vector<double> map_of(bool is_signed) {
  std::vector<double> all{0.0};
  const int powers = is_signed ? 7 : 8;
  for (int power = 0; power < powers; ++power) {
    const int numbers = 1 << power;
    for (int k = 0; k < numbers; ++k) {
      const double below = 0.1 + 0.9 * k / numbers, above = 0.1 + 0.9 * (k + 1) / numbers;
      all.push_back(std::pow(10.0, power - (powers - 1)) * (below + above) / 2.0);
    }
  }
  return all;
}

template <bool Signed>
struct map {
  static constexpr bool is_signed = Signed;
  static float number(std::uint32_t code) { return dynamic_map<Signed>::template number_of<one_real>(code).of[0]; }
  static std::uint32_t code(float x, float per_scale, std::uint32_t draw) {
    return dynamic_map<Signed>::template code_of<one_real>(x, per_scale, draw).of[0];
  }
};

/// Numbers in 0 … largest of all sizes.
std::vector<float> numbers_below(float largest) {
  test_support::random_source source(7);
  std::vector<float> all{0.0F, largest, 0x1p-149F, 0x1p-126F, 1e-7F, 1e-6F, 1e-3F, 0.1F, 0.01F};
  for (int i = 0; i < 300; ++i) {
    const double tens = -8.0 * static_cast<double>(source.below(1U << 20U)) / (1U << 20U);
    all.push_back(largest * static_cast<float>(std::pow(10.0, tens)));
  }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("eight bits: the maps are the paper's", Map, map<true>, map<false>) {
  const std::vector<double> exact = map_of(Map::is_signed);
  CHECK(exact.size() == dynamic_map<Map::is_signed>::last + 1);
  CHECK(exact.back() == doctest::Approx(dynamic_map<Map::is_signed>::largest).epsilon(1e-7));
  for (std::uint32_t code = 0; code < exact.size(); ++code) {
    CHECK(std::abs(Map::number(code) - exact[code]) <= 3e-7 * exact[code]);
    if (Map::is_signed) CHECK(Map::number(code | 0x80U) == -Map::number(code));
  }
}

TEST_CASE_TEMPLATE("eight bits: a number goes to one of its neighbours, and to itself in the mean", Map, map<true>,
                   map<false>) {
  const std::vector<double> exact = map_of(Map::is_signed);
  for (const float x : numbers_below(dynamic_map<Map::is_signed>::largest)) {
    const auto above = std::upper_bound(exact.begin(), exact.end() - 1, static_cast<double>(x));
    const auto upper = static_cast<std::uint32_t>(above - exact.begin());
    double ups = 0.0;
    for (std::uint32_t draw = 0; draw < 0x10000U; ++draw) {
      const std::uint32_t code = Map::code(x, 1.0F, draw);
      const bool kept_above_0 = !Map::is_signed && x > 0.0F && upper == 1;
      if (kept_above_0) REQUIRE(code == 1);
      if (!kept_above_0) REQUIRE((code == upper || code + 1 == upper));
      ups += code == upper ? 1.0 : 0.0;
      if (Map::is_signed) REQUIRE(Map::code(-x, 1.0F, draw) == (code | 0x80U));
    }
    const double part = (static_cast<double>(x) - exact[upper - 1]) / (exact[upper] - exact[upper - 1]);
    if (Map::is_signed || upper > 1) CHECK(std::abs(ups / 0x10000 - part) < 0x1p-13 + 0x1p-16);
  }
}

TEST_CASE_TEMPLATE("eight bits: the mean over 2^20 draws of the generator is the number", Map, map<true>, map<false>) {
  const float x = 0.0123F;
  double sum = 0.0;
  for (std::uint64_t i = 0; i < (1U << 20U); i += 8) {
    const auto u32x16 = slamb::philox(3, i / 8, 5);
    for (std::uint32_t k = 0; k < 8; ++k)
      sum += static_cast<double>(Map::number(Map::code(x, 1.0F, u32x16.word[k / 2] >> (16 * (k % 2)) & 0xFFFFU)));
  }
  const double distance = 0.1 * 0.9 / (Map::is_signed ? 32 : 64);
  CHECK(std::abs(sum / 0x1p20 - static_cast<double>(x)) < distance * (4.0 / 1024 / 2 + 0x1p-13));
}

TEST_CASE_TEMPLATE("eight bits: numbers of the map stay as they are, for any scale and draw", Map, map<true>,
                   map<false>) {
  for (const float largest : {1.0F, 3.7e-9F, 1.1e30F, 0x1.fffffep127F}) {
    const float scale = slamb::detail::block_scale<Map::is_signed>(std::bit_cast<std::uint32_t>(largest));
    for (std::uint32_t code = 0; code <= dynamic_map<Map::is_signed>::last; ++code) {
      const float x = Map::number(code) * scale;
      for (const std::uint32_t draw : {0U, 1U, 0x8000U, 0xFFFEU, 0xFFFFU})
        REQUIRE(Map::code(x, slamb::detail::per_scale(scale), draw) == code);
    }
  }
}

TEST_CASE("eight bits: scales reach from the smallest to the largest number, and keep what is not finite") {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  const auto scale_of = [](float x) { return slamb::detail::block_scale<true>(std::bit_cast<std::uint32_t>(x)); };
  CHECK(scale_of(0.0F) == 0.0F);
  CHECK(slamb::detail::per_scale(0.0F) == 0.0F);
  CHECK(scale_of(infinite) == infinite);
  CHECK(std::isnan(scale_of(std::numeric_limits<float>::quiet_NaN())));
  CHECK(slamb::detail::per_scale(infinite) == 0.0F);
  CHECK(slamb::detail::per_scale(std::numeric_limits<float>::quiet_NaN()) == 0.0F);
  for (const float x : {0x1p-149F, 0x1p-126F, 1e-30F, 1.0F, 1e30F, 0x1.fffffep127F}) {
    const float scale = scale_of(x), inverse = slamb::detail::per_scale(scale);
    CHECK(std::isfinite(scale));
    CHECK(std::isfinite(inverse));
    CHECK(inverse > 0.0F);
    const std::uint32_t code = dynamic_map<true>::code_of<one_real>(x, inverse, 0x7FFFU).of[0];
    CHECK(code <= 127);
    if (x >= 0x1p-125F) {
      CHECK(code == 127);
      if (x < 3.37e38F)  // beyond, the scale is the largest float
        CHECK(dynamic_map<true>::number_of<one_real>(code).of[0] * scale == doctest::Approx(x).epsilon(1e-6));
    }
  }
}

TEST_CASE_TEMPLATE("eight bits: vectors have the bits of scalars", Map, map<true>, map<false>) {
  constexpr bool is_signed = Map::is_signed;
  std::vector<float> all = numbers_below(dynamic_map<is_signed>::largest);
  while (all.size() % lanes != 0) all.push_back(0.5F);
  test_support::random_source source(11);
  for (std::size_t i = 0; i < all.size(); i += lanes) {
    std::uint32_t draws[lanes], codes[lanes];
    float x[lanes], numbers[lanes];
    for (std::size_t k = 0; k < lanes; ++k) {
      draws[k] = static_cast<std::uint32_t>(source.below(0x10000U));
      x[k] = is_signed && k % 3 == 0 ? -all[i + k] : all[i + k];
    }
    const u32x16 found = dynamic_map<is_signed>::code_of(f32x16::load(x), f32x16(1.0F), u32x16::load(draws));
    found.store(codes);
    dynamic_map<is_signed>::template number_of<f32x16>(found).store(numbers);
    for (std::size_t k = 0; k < lanes; ++k) {
      REQUIRE(codes[k] == Map::code(x[k], 1.0F, draws[k]));
      REQUIRE(std::bit_cast<std::uint32_t>(numbers[k]) == std::bit_cast<std::uint32_t>(Map::number(codes[k])));
    }
  }
}

}  // namespace core_eight_bits_tests
