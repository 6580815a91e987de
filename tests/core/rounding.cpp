// Rounding to sixteen bits: IEEE 754's, compared with double precision; and by chance, whose mean must be the number itself.
#include "slamb/core/detail/rounding.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "slamb/backend/host/detail/draws.hpp"
#include "slamb/backend/host/detail/positions.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/backend/host/detail/storage.hpp"
#include "slamb/compressor/detail/bernoulli.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/random.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "support/draws.hpp"
#include "support/generate.hpp"
#include "support/nearest.hpp"

namespace core_rounding_tests {
namespace {

using slamb::detail::nearest_bfloat16_bits;
using slamb::detail::stochastic_bfloat16_bits;
using slamb::detail::stochastic_half_bits;
using slamb::detail::host::f32x16;
using slamb::detail::host::u32x16;
constexpr std::uint32_t lanes = slamb::detail::host::lanes;
constexpr float infinite = std::numeric_limits<float>::infinity();

float of_bfloat16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
float of_half(std::uint32_t bits) { return slamb::detail::real_of_half_bits<float>(bits); }

struct rounding {
  std::uint32_t (*round)(float x, std::uint32_t draw);
  float (*value)(std::uint32_t bits);
  test_support::number_format format;
  double bias;  // the largest difference of the mean, in units of the distance of the numbers next to x
};
const rounding of_both[] = {
    {[](float x, std::uint32_t draw) -> std::uint32_t { return stochastic_bfloat16_bits(x, draw); }, of_bfloat16,
     test_support::bfloat16_format, 0.0},
    {[](float x, std::uint32_t draw) -> std::uint32_t { return stochastic_half_bits(x, draw); }, of_half,
     test_support::binary16_format, 0x1p-17},
};

/// The distance between the numbers of the format around x.
double step_at(const test_support::number_format& format, double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, format.least_exponent) - (format.precision - 1));
}

/// The mean over all 2^16 draws.
double mean_of(const rounding& r, float x) {
  double sum = 0.0;
  for (std::uint32_t draw = 0; draw < 0x10000U; ++draw) sum += static_cast<double>(r.value(r.round(x, draw)));
  return sum / 0x1p16;
}

/// Numbers of all sizes that a half has, subnormal and normal.
std::vector<float> numbers() {
  std::vector<float> all{0.0F, -0.0F, 1.0F, -1.5F, 65503.0F, 0x1p-14F, 0x1.8p-14F, 0x1p-25F, 0x1.fffffep-15F, 0x1p-30F};
  test_support::random_source source(3);
  for (int exponent = -26; exponent < 16; ++exponent)
    for (int i = 0; i < 2; ++i)
      all.push_back(static_cast<float>(std::ldexp(1.0 + 0.999 * source.uniform(), exponent) * (i == 0 ? 1.0 : -1.0)));
  all.back() = 60000.7F;
  return all;
}

}  // namespace

TEST_CASE("rounding: to the nearest bfloat16, as IEEE 754, and to infinity beyond") {
  test_support::random_source source(4);
  const auto& format = test_support::bfloat16_format;
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    if ((upper & 0x7F80U) == 0x7F80U) continue;
    for (const std::uint32_t lower :
         {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU, static_cast<std::uint32_t>(source.below(0x10000))}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      const double wide = static_cast<double>(x);
      const bool is_beyond = std::abs(wide) >= format.largest + std::ldexp(1.0, 119);
      const double expected = is_beyond ? std::copysign(std::numeric_limits<double>::infinity(), wide)
                                        : test_support::nearest(format, wide);
      REQUIRE(static_cast<double>(of_bfloat16(nearest_bfloat16_bits(x))) == expected);
    }
  }
  CHECK(of_bfloat16(nearest_bfloat16_bits(infinite)) == infinite);
  CHECK(of_bfloat16(nearest_bfloat16_bits(-infinite)) == -infinite);
  for (const std::uint32_t bits : {0x7FC00000U, 0x7F800001U, 0x7FFFFFFFU, 0xFF80FFFFU, 0xFFFFFFFFU})
    CHECK(std::isnan(of_bfloat16(nearest_bfloat16_bits(std::bit_cast<float>(bits)))));
}

TEST_CASE("rounding: by chance, the mean over all draws is the number itself") {
  for (const rounding& r : of_both)
    for (const float x : numbers()) {
      CAPTURE(x);
      const double wide = static_cast<double>(x);
      CHECK(std::abs(mean_of(r, x) - wide) <= r.bias * step_at(r.format, wide));
    }
}

TEST_CASE("rounding: by chance, the comparison of means finds a bias of a thousandth of a step") {
  const rounding off{[](float x, std::uint32_t draw) -> std::uint32_t {
                       return stochastic_bfloat16_bits(x, draw < 0xFF00U ? draw : 0U);
                     },
                     of_bfloat16, test_support::bfloat16_format, 0.0};
  CHECK(std::abs(mean_of(off, 1.004F) - static_cast<double>(1.004F)) > 1e-3 * step_at(off.format, 1.004));
}

TEST_CASE("rounding: by chance, over 2^20 draws of the generator the mean is within its spread") {
  using slamb::detail::rounding_draws;
  for (const rounding& r : of_both)
    for (const float x : {0.7371F, -3.1e-6F, 1234.56F}) {
      const double wide = static_cast<double>(x), step = step_at(r.format, wide);
      double sum = 0.0;
      for (std::uint64_t i = 0; i < 0x100000U; ++i) {
        const auto u32x16 = slamb::philox(99, i / rounding_draws::elements_of_counter, 7);
        sum += (static_cast<double>(r.value(r.round(x, rounding_draws::draw_of(u32x16, i)))) - wide) / step;
      }
      CHECK(std::abs(sum / 0x1p20) < 4.0 * 0.5 / 1024.0);  // four standard deviations of a mean of 2^20
    }
}

TEST_CASE("rounding: four draws at once are those of four elements") {
  using slamb::detail::rounding_draws;
  for (std::uint64_t i = 0; i < 256; i += 4) {
    CAPTURE(i);
    const auto words = slamb::philox(99, i / rounding_draws::elements_of_counter, 7);
    const std::uint64_t four = rounding_draws::four_draws_of(words, i);
    for (std::uint32_t j = 0; j < 4; ++j) CHECK((four >> 16 * j & 0xFFFFU) == rounding_draws::draw_of(words, i + j));
  }
}

TEST_CASE("rounding: any two draws of a counter are independent") {
  // A draw is the xor of some halves. With the bit k in half k, it is the set of them: draws of different, not empty, sets are
  // independent if the halves are.
  slamb::detail::random_words u32x16{};
  for (std::uint32_t k = 0; k < 8; ++k) u32x16.word[k / 2] |= 1U << (k + 16 * (k % 2));
  std::set<std::uint32_t> sets;
  for (std::uint64_t i = 0; i < slamb::detail::rounding_draws::elements_of_counter; ++i)
    sets.insert(slamb::detail::rounding_draws::draw_of(u32x16, i));
  CHECK(sets.size() == slamb::detail::rounding_draws::elements_of_counter);
  CHECK(!sets.contains(0U));
  CHECK(*sets.rbegin() < 0x100U);
}

TEST_CASE("rounding: the variance of sums over the elements of a counter is that of independent roundings") {
  using slamb::detail::rounding_draws;
  const rounding& r = of_both[0];
  const float x = 1.0F + 0x1p-7F * 0.3F;  // of two numbers 2^-7 apart
  constexpr int counters = 0x10000;
  double squares = 0.0;
  for (std::uint64_t c = 0; c < counters; ++c) {
    const auto u32x16 = slamb::philox(5, c, 9);
    double sum = 0.0;
    for (std::uint64_t i = 0; i < rounding_draws::elements_of_counter; ++i)
      sum += (static_cast<double>(r.value(r.round(x, rounding_draws::draw_of(u32x16, i)))) - static_cast<double>(x)) *
             128.0;
    squares += sum * sum;
  }
  const double f = (static_cast<double>(x) - 1.0) * 128.0;
  const double expected = f * (1.0 - f) * static_cast<double>(rounding_draws::elements_of_counter);
  CHECK(std::abs(squares / counters / expected - 1.0) < 0.03);
}

TEST_CASE("rounding: draws do not depend on the blocks that random_k sends, with the same seed") {
  using slamb::detail::rounding_draws;
  constexpr std::uint64_t counters = 4096;
  const std::uint64_t steps = 9;
  for (const std::uint64_t use : {rounding_draws::of_update, rounding_draws::of_average}) {
    const rounding_draws draws{.seed = 0, .steps = &steps, .use = use};
    for (const std::uint64_t block : {1U, 2U, 4U, 8U, 16U, 32U}) {
      const slamb::detail::bernoulli_selection selection{
          .seed = 0, .block = block, .step = steps + 1, .threshold = 0x40000000U};
      for (std::uint64_t j = 0; j < rounding_draws::elements_of_counter; ++j) {
        double sum = 0.0, count = 0.0;
        for (std::uint64_t c = 0; c < counters; ++c) {
          const std::uint64_t i = c * rounding_draws::elements_of_counter + j;
          if (!selection.selects({.tensor = 3, .index = i})) continue;
          sum += rounding_draws::draw_of(slamb::philox(draws.seed, draws.counter(i), draws.stream(3)), i) - 32767.5;
          count += 1.0;
        }
        CAPTURE(block);
        CAPTURE(j);
        CHECK(std::abs(sum) < 5.0 * 65536.0 / std::sqrt(12.0) * std::sqrt(count));
      }
    }
  }
}

TEST_CASE("rounding: the draws of a tile are those of its elements, wherever the tile begins") {
  using precision = slamb::detail::mixed_precision<true>;
  const std::uint64_t steps = 41;
  struct {
    slamb::detail::rounding_draws draws;
  } const view{{.seed = 0xFEDCBA9876543210U, .steps = &steps}};
  for (const std::uint64_t first : {0U, 8192U, 64U, 37U, 63U, 1000001U}) {
    const slamb::detail::tile tile{.first = first, .segment = 3, .count = 3000};
    const slamb::detail::host::rounding_words<precision> draws(view, tile);
    for (std::uint32_t i = 0; i < tile.count; i += lanes) {
      std::uint32_t got[lanes];
      draws.draw(slamb::detail::host::whole_at{i}).store(got);
      for (std::uint32_t j = 0; j < lanes; ++j)
        REQUIRE(got[j] == test_support::rounding_draw(view.draws.seed, steps + 1, 3, first + i + j));
    }
  }
}

TEST_CASE("rounding: by chance, to one of the two numbers around it, and exact numbers stay") {
  for (const rounding& r : of_both)
    for (const float x : numbers())
      for (const std::uint32_t draw : {0U, 1U, 0x7FFFU, 0x8000U, 0xFFFFU}) {
        const double wide = static_cast<double>(x), got = static_cast<double>(r.value(r.round(x, draw)));
        CHECK(std::abs(got - wide) < step_at(r.format, wide));
        CHECK(r.value(r.round(static_cast<float>(got), draw)) == static_cast<float>(got));
        CHECK(std::signbit(got) == std::signbit(wide));
      }
}

TEST_CASE("rounding: by chance, finite numbers stay finite, infinities and NaN stay what they are") {
  for (const std::uint32_t draw : {0U, 0xFFFFU}) {
    CHECK(of_bfloat16(stochastic_bfloat16_bits(std::numeric_limits<float>::max(), draw)) == 0x1.FEp127F);
    CHECK(of_bfloat16(stochastic_bfloat16_bits(-infinite, draw)) == -infinite);
    CHECK(std::isnan(of_bfloat16(stochastic_bfloat16_bits(std::numeric_limits<float>::quiet_NaN(), draw))));
    CHECK(of_half(stochastic_half_bits(65535.0F, draw)) == 65504.0F);
    CHECK(of_half(stochastic_half_bits(65536.0F, draw)) == infinite);
    CHECK(of_half(stochastic_half_bits(infinite, draw)) == infinite);
    CHECK(std::isnan(of_half(stochastic_half_bits(std::numeric_limits<float>::quiet_NaN(), draw))));
  }
}

TEST_CASE("rounding: arrays are rounded as single numbers are, with and without the cases that hardly ever occur") {
  using element_type = slamb::parameter::element_type;
  std::vector<float> all = numbers();
  for (const float x :
       {infinite, -infinite, std::numeric_limits<float>::quiet_NaN(), -std::nanf("0x3FFFFF"), 3e38F,
        std::numeric_limits<float>::max(), 65503.9F, 65504.0F, 65519.0F, 65520.0F, -65536.0F, 0x1p-14F, 1e-45F})
    all.push_back(x);
  test_support::random_source source(6);
  std::uint16_t got[2 * lanes] = {};  // as many bytes as of floats, so that no compiler sees a branch beyond them
  std::uint32_t draws[lanes];
  float values[lanes];
  for (int round = 0; round < 2000; ++round) {
    for (std::uint32_t j = 0; j < lanes; ++j) {
      const bool is_usual = round % 3 == 0 || source.below(8) != 0;
      values[j] = is_usual ? static_cast<float>(source.uniform() - 0.5) : all[source.below(all.size())];
      draws[j] = static_cast<std::uint32_t>(source.below(0x10000));
    }
    const f32x16 x = f32x16::load(values);
    for (const element_type type : {element_type::bfloat16, element_type::float16}) {
      const bool is_half = type == element_type::float16;
      slamb::detail::host::store_nearest(x, got, type, 0);
      for (std::uint32_t j = 0; j < lanes; ++j)
        REQUIRE(got[j] == (is_half ? slamb::detail::half_bits(values[j]) : nearest_bfloat16_bits(values[j])));
      slamb::detail::host::store_by_chance(x, u32x16::load(draws), got, type, 0);
      for (std::uint32_t j = 0; j < lanes; ++j) REQUIRE(got[j] == of_both[is_half ? 1 : 0].round(values[j], draws[j]));
      const slamb::detail::typed_numbers array{got, type};
      float back[lanes];
      slamb::detail::host::load_typed(array, 0).store(back);
      for (std::uint32_t j = 0; j < lanes; ++j) {
        const float expected = is_half ? of_half(got[j]) : of_bfloat16(got[j]);
        REQUIRE((std::isnan(expected) ? std::isnan(back[j]) : back[j] == expected));
      }
    }
  }
}

TEST_CASE("rounding: vectors round as single numbers do") {
  std::vector<float> all = numbers();
  for (const float x : {infinite, -infinite, 3e38F, -3.4e38F, 65520.0F, 1e-45F, 1e-39F}) all.push_back(x);
  while (all.size() % lanes != 0) all.push_back(0.3F);
  std::uint32_t draws[lanes], bits[lanes];
  test_support::random_source source(5);
  for (std::size_t i = 0; i < all.size(); i += lanes) {
    for (std::uint32_t& draw : draws) draw = static_cast<std::uint32_t>(source.below(0x10000));
    const f32x16 x = f32x16::load(all.data() + i);
    const auto check = [&](const u32x16& got, auto&& expected) {
      got.store(bits);
      for (std::uint32_t j = 0; j < lanes; ++j) REQUIRE(bits[j] == expected(all[i + j], draws[j]));
    };
    check(nearest_bfloat16_bits(x), [](float a, std::uint32_t) { return nearest_bfloat16_bits(a); });
    check(stochastic_bfloat16_bits(x, u32x16::load(draws)), of_both[0].round);
    check(stochastic_half_bits(x, u32x16::load(draws)), of_both[1].round);
  }
}

}  // namespace core_rounding_tests
