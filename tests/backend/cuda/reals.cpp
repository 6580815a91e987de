// The numbers of kernels: every operation gives each lane the bits of the host's vectors.
#include "slamb/backend/cuda/detail/reals.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/core/real.hpp"
#include "support/generate.hpp"

namespace backend_cuda_reals_tests {
namespace {

using slamb::detail::cuda::masks;
using slamb::detail::cuda::reals;
using slamb::detail::cuda::words;
using slamb::detail::host::f32x16;
using slamb::detail::host::u32x16;
constexpr unsigned lanes = slamb::detail::host::lanes;

/// Bits of numbers: zeros, infinities, NaN, the smallest and the largest, and any.
std::uint32_t bits_of_any(test_support::random_source& source) {
  constexpr std::uint32_t corners[] = {0U,          0x80000000U, 0x3F800000U, 0xBF800000U, 0x7F800000U, 0xFF800000U,
                                       0x7FC00000U, 0x00000001U, 0x00800000U, 0x7F7FFFFFU, 0xFF7FFFFFU, 0x3DCCCCCDU};
  const std::uint64_t which = source.below(2 * std::size(corners));
  return which < std::size(corners) ? corners[which] : static_cast<std::uint32_t>(source.next());
}

/// The number of lanes of `formula`, over random operands, that differ from the host's. Any NaN equals any NaN.
template <unsigned W, class Formula>
int differences(const Formula& formula) {
  test_support::random_source source(5);
  int different = 0;
  for (int round = 0; round < 2000; ++round) {
    alignas(64) float a[lanes] = {}, b[lanes] = {}, expected[lanes];
    reals<W> x, y;
    for (unsigned j = 0; j < W; ++j) {
      x.of[j] = a[j] = std::bit_cast<float>(bits_of_any(source));
      y.of[j] = b[j] = std::bit_cast<float>(bits_of_any(source));
    }
    f32x16(formula(f32x16::load(a), f32x16::load(b))).store(expected);
    const reals<W> got = formula(x, y);
    for (unsigned j = 0; j < W; ++j) {
      const bool same = std::isnan(expected[j])
                            ? std::isnan(got.of[j])
                            : std::bit_cast<std::uint32_t>(got.of[j]) == std::bit_cast<std::uint32_t>(expected[j]);
      different += same ? 0 : 1;
    }
  }
  return different;
}
template <class Formula>
void expect_as_host(const Formula& formula) {
  CHECK(differences<1>(formula) == 0);
  CHECK(differences<4>(formula) == 0);
  CHECK(differences<8>(formula) == 0);
}

}  // namespace

TEST_CASE("cuda reals: the comparison with the host finds a lane that differs") {
  CHECK(differences<4>([](auto a, auto b) {
          if constexpr (std::is_same_v<decltype(a), reals<4>>) b.of[3] = 2.0F;
          return a + b;
        }) > 0);
}

TEST_CASE("cuda reals: arithmetic has the host's bits, with NaN, infinity, signed zeros and denormals") {
  expect_as_host([](auto a, auto b) { return a + b; });
  expect_as_host([](auto a, auto b) { return a - b; });
  expect_as_host([](auto a, auto b) { return a * b; });
  expect_as_host([](auto a, auto b) { return a / b; });
  expect_as_host([](auto a, auto /*b*/) { return square_root(absolute(a)); });
  expect_as_host([](auto a, auto b) { return minimum(a, b); });
  expect_as_host([](auto a, auto b) { return maximum(a, b); });
}

TEST_CASE("cuda reals: a product is rounded before the addition") {
  expect_as_host([](auto a, auto b) { return a * b + a; });
  expect_as_host([](auto a, auto b) { return a - b * b; });
}

TEST_CASE("cuda reals: numbers become vectors in formulas, and masks choose lanes") {
  expect_as_host([](auto a, auto b) { return 2.0F * a + b * 3.0F; });
  expect_as_host([](auto a, auto b) { return select(a < b, a, b); });
  expect_as_host([](auto a, auto b) { return select((a < b) & ~(a < 0.0F), a, b); });
  expect_as_host([](auto a, auto b) {
    using Real = decltype(a);
    using word = slamb::word_of<Real>;
    return Real(as_real(select(as_word(a) < as_word(b), as_word(a), word(7U))));
  });
}

TEST_CASE("cuda reals: words have the host's bits") {
  expect_as_host([](auto a, auto b) {
    using Real = decltype(a);
    using word = slamb::word_of<Real>;
    const word x = as_word(a), y = as_word(b);
    return Real(as_real(((x + y) ^ (x - y)) | ((x & y) << 3) | (x >> 31)));
  });
  expect_as_host([](auto a, auto b) {
    using Real = decltype(a);
    using word = slamb::word_of<Real>;
    const word small = as_word(a) >> 1;  // below 2^31
    return Real(to_real(small)) + Real(to_real(to_word(Real(to_real(small >> 1))))) +
           Real(to_real(select(as_word(a) == as_word(b), word(1U), word(0U))));
  });
  static_assert(std::is_same_v<slamb::word_of<reals<4>>, words<4>>);
}

TEST_CASE("cuda thread_sums: lanes are added in their order, and each is checked") {
  slamb::detail::cuda::thread_sums<1, 1> sums;
  reals<4> x;
  const float values[] = {0x1p60F, 1.0F, -3.0F, 2.0F};
  for (unsigned j = 0; j < 4; ++j) x.of[j] = values[j];
  sums.add_square(0, x);
  sums.take_maximum(0, x);
  sums.check_finite(x);
  double expected = 0.0;
  for (const float value : values) expected += static_cast<double>(value) * static_cast<double>(value);
  CHECK(sums.sum[0] == expected);
  CHECK(sums.highest[0] == 0x1p60F);
  CHECK(sums.usable);
  for (unsigned j = 0; j < 4; ++j) {
    slamb::detail::cuda::thread_sums<0> checks;
    reals<4> large(1.0F);
    large.of[j] = 0x1p64F;
    checks.check_finite(large);
    CHECK_FALSE(checks.usable);
  }
}

}  // namespace backend_cuda_reals_tests
