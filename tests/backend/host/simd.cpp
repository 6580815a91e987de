// Vectors of sixteen floats: every operation compared with a loop over the lanes.
#include "slamb/backend/host/detail/simd.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "slamb/core/real.hpp"
#include "support/generate.hpp"

namespace backend_host_simd_tests {
namespace {

using slamb::detail::host::double_sum;
using slamb::detail::host::f32x16;
using slamb::detail::host::lane_mask;
using slamb::detail::host::mask_of;
constexpr std::size_t lanes = slamb::detail::host::lanes;

using lane_array = std::array<float, lanes>;

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Edge cases of floating-point arithmetic.
constexpr std::array corners{0.0F,
                             -0.0F,
                             1.0F,
                             -1.0F,
                             0.1F,
                             -3.5F,
                             16777216.0F,
                             std::numeric_limits<float>::denorm_min(),
                             -std::numeric_limits<float>::denorm_min(),
                             1e-40F,
                             -1e-40F,
                             std::numeric_limits<float>::min(),
                             std::numeric_limits<float>::max(),
                             std::numeric_limits<float>::lowest(),
                             infinite,
                             -infinite,
                             not_a_number,
                             -not_a_number};

/// Every pair of corners at every lane, then pairs over many binades.
std::vector<std::array<lane_array, 2>> operands() {
  std::vector<std::array<lane_array, 2>> all;
  for (std::size_t first = 0; first < corners.size(); ++first)
    for (std::size_t second = 0; second < corners.size(); ++second) {
      std::array<lane_array, 2> pair{};
      for (std::size_t i = 0; i < lanes; ++i) {
        pair[0][i] = corners[(first + i) % corners.size()];
        pair[1][i] = corners[(second + 3 * i) % corners.size()];
      }
      all.push_back(pair);
    }
  test_support::random_source source(1);
  for (int n = 0; n < 500; ++n) {
    std::array<lane_array, 2> pair{};
    for (lane_array& a : pair)
      for (float& x : a) x = std::bit_cast<float>(static_cast<std::uint32_t>(source.next()));
    all.push_back(pair);
  }
  return all;
}

lane_array lanes_of(const f32x16& x) {
  lane_array all;
  x.store(all.data());
  return all;
}

/// Equal bits; any NaN equals any NaN, because an operation may return the NaN of either operand.
bool same(float got, float expected) {
  return std::isnan(expected) ? std::isnan(got)
                              : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(expected);
}

/// Equal bits, NaN included.
bool identical(float got, float expected) {
  return std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(expected);
}

/// The number of lanes, over all operands, that differ between a vector operation and its scalar twin.
template <class Vector, class Scalar, class Compare>
std::size_t differences(Vector vector, Scalar scalar, Compare equal) {
  std::size_t different = 0;
  for (const auto& [a, b] : operands()) {
    const lane_array got = lanes_of(vector(f32x16::load(a.data()), f32x16::load(b.data())));
    for (std::size_t i = 0; i < lanes; ++i) different += equal(got[i], scalar(a[i], b[i])) ? 0 : 1;
  }
  return different;
}

/// A product that no compiler can fuse with a following sum.
float rounded_product(float a, float b) {
  const volatile float product = a * b;
  return product;
}

}  // namespace

TEST_CASE("simd: the comparison of lanes finds differences") {
  const auto add = [](const f32x16& a, const f32x16& b) { return a + b; };
  CHECK(differences(
            add, [](float a, float b) { return a - b; }, same) > 0);
  CHECK(differences(
            add, [](float a, float b) { return std::abs(a + b); }, same) > 0);  // the comparison sees the sign of zero
  CHECK_FALSE(same(0.0F, -0.0F));
  CHECK_FALSE(same(not_a_number, 0.0F));
  CHECK_FALSE(same(0.0F, not_a_number));
  CHECK(same(not_a_number, -not_a_number));
  CHECK_FALSE(identical(not_a_number, -not_a_number));
}

TEST_CASE("simd: arithmetic equals scalar arithmetic in each lane, with NaN, infinity, signed zeros and denormals") {
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a + b; }, [](float a, float b) { return a + b; },
                    same) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a - b; }, [](float a, float b) { return a - b; },
                    same) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a * b; }, rounded_product, same) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a / b; }, [](float a, float b) { return a / b; },
                    same) == 0);
  CHECK(differences([](const f32x16& a, const f32x16&) { return square_root(a); },
                    [](float a, float) { return std::sqrt(a); }, same) == 0);
}

TEST_CASE("simd: a product is rounded before the addition, also on processors with fused multiply-add") {
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a * b + a; },
                    [](float a, float b) { return rounded_product(a, b) + a; }, same) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a - b * b; },
                    [](float a, float b) { return a - rounded_product(b, b); }, same) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return a * b + b * b; },
                    [](float a, float b) { return rounded_product(a, b) + rounded_product(b, b); }, same) == 0);
}

TEST_CASE("rounded_product: is rounded before the addition, in scalar code too") {
  // (1 + e)² = 1 + 2e + e². The term e² is lost if the product is rounded, and kept if it is fused with the sum.
  volatile float small = 1.0F + 0x1p-12F;
  volatile double tiny = 1.0 + 0x1p-27;
  const float a = small;
  const double b = tiny;
  CHECK(slamb::rounded_product(a, a) - (1.0F + 0x1p-11F) == 0.0F);
  CHECK(slamb::rounded_product(b, b) - (1.0 + 0x1p-26) == 0.0);
  CHECK(std::fma(a, a, -(1.0F + 0x1p-11F)) == 0x1p-24F);
  CHECK(std::fma(b, b, -(1.0 + 0x1p-26)) == 0x1p-54);
}

TEST_CASE("simd: minimum and maximum have the bits of real.hpp, also with NaN") {
  using slamb::maximum;
  using slamb::minimum;
  CHECK(differences([](const f32x16& a, const f32x16& b) { return minimum(a, b); },
                    [](float a, float b) { return minimum(a, b); }, identical) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return maximum(a, b); },
                    [](float a, float b) { return maximum(a, b); }, identical) == 0);
}

TEST_CASE("simd: less, its inverse and select, bit for bit") {
  CHECK(differences([](const f32x16& a, const f32x16& b) { return select(a < b, a, b); },
                    [](float a, float b) { return a < b ? a : b; }, identical) == 0);
  CHECK(differences([](const f32x16& a, const f32x16& b) { return select(~(a < b), a, b); },
                    [](float a, float b) { return !(a < b) ? a : b; }, identical) == 0);
}

TEST_CASE("simd: a broadcast fills every lane, and keeps the sign of zero") {
  for (const float x : corners) {
    const lane_array all = lanes_of(f32x16(x));
    CAPTURE(x);
    CHECK(std::all_of(all.begin(), all.end(), [x](float lane) { return same(lane, x); }));
  }
}

TEST_CASE("simd: a mask of sixteen bits selects the lanes of its set bits") {
  lane_array yes, no;
  for (std::size_t i = 0; i < lanes; ++i) {
    yes[i] = static_cast<float>(i + 1);
    no[i] = -static_cast<float>(i + 1);
  }
  const f32x16 a = f32x16::load(yes.data());
  const f32x16 b = f32x16::load(no.data());
  std::size_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const lane_array got = lanes_of(select(mask_of(bits), a, b));
    for (std::size_t i = 0; i < lanes; ++i) wrong += got[i] == ((bits >> i & 1U) != 0 ? yes[i] : no[i]) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("simd: full loads and stores, at any alignment") {
  std::array<float, 3 * lanes> from, to;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  for (std::size_t shift = 0; shift <= lanes; ++shift) {
    to.fill(-1.0F);
    f32x16::load(from.data() + shift).store(to.data() + shift);
    for (std::size_t i = 0; i < to.size(); ++i)
      CHECK(to[i] == (i >= shift && i < shift + lanes ? static_cast<float>(i) : -1.0F));
  }
}

TEST_CASE("simd: partial loads read nothing past the end, and leave zeros in the other lanes") {
  for (int count = 0; count <= static_cast<int>(lanes); ++count) {
    const auto size = static_cast<std::size_t>(count);
    const auto exact = std::make_unique<float[]>(size);  // the address sanitizer finds a read past the end
    for (std::size_t i = 0; i < size; ++i) exact[i] = static_cast<float>(i + 1);
    const lane_array got = lanes_of(f32x16::load(exact.get(), count));
    for (std::size_t i = 0; i < lanes; ++i) CHECK(identical(got[i], i < size ? static_cast<float>(i + 1) : 0.0F));
  }
}

TEST_CASE("simd: partial stores write nothing past the end") {
  lane_array values;
  for (std::size_t i = 0; i < lanes; ++i) values[i] = static_cast<float>(i + 1);
  for (int count = 0; count <= static_cast<int>(lanes); ++count) {
    std::array<float, 3 * lanes> to;
    to.fill(-7.0F);
    f32x16::load(values.data()).store(to.data() + lanes, count);
    for (std::size_t i = 0; i < to.size(); ++i) {
      const bool inside = i >= lanes && i < lanes + static_cast<std::size_t>(count);
      CHECK(to[i] == (inside ? values[i - lanes] : -7.0F));
    }
  }
}

TEST_CASE("simd: sums of squares use eight lanes in double precision, added as a tree") {
  test_support::random_source source(3);
  double_sum sum;
  std::array<double, 8> lane{};
  for (int n = 0; n < 300; ++n) {
    lane_array x;
    for (float& value : x)
      value = static_cast<float>(std::ldexp(source.bell(), static_cast<int>(source.below(40)) - 20));
    sum.add_square(f32x16::load(x.data()));
    const auto square = [&x](std::size_t i) { return static_cast<double>(x[i]) * static_cast<double>(x[i]); };
    for (std::size_t i = 0; i < 8; ++i) lane[i] += square(i) + square(i + 8);
  }
  for (std::size_t half = 4; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  CHECK(sum.total() == lane[0]);
}

TEST_CASE("simd: a square that a float cannot hold is exact in a sum") {
  double_sum sum;
  sum.add_square(f32x16(1e-30F));
  const double tiny = static_cast<double>(1e-30F);
  CHECK(sum.total() == 16.0 * tiny * tiny);
  double_sum large;
  large.add_square(f32x16(1e30F));
  const double huge = static_cast<double>(1e30F);
  CHECK(large.total() == 16.0 * (huge * huge));
  double_sum broken;
  broken.add_square(f32x16(not_a_number));
  CHECK(std::isnan(broken.total()));
  CHECK(double_sum{}.total() == 0.0);
}

}  // namespace backend_host_simd_tests
