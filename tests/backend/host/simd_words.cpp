// Vectors of sixteen words: every operation compared with a loop over the lanes.
#include "slamb/backend/host/detail/simd_words.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "slamb/core/real.hpp"
#include "support/generate.hpp"

namespace backend_host_simd_words_tests {
namespace {

using slamb::detail::host::f32x16;
using slamb::detail::host::lane_mask;
using slamb::detail::host::mask_of;
using slamb::detail::host::u32x16;
constexpr std::size_t lanes = slamb::detail::host::lanes;

using word_array = std::array<std::uint32_t, lanes>;
using lane_array = std::array<float, lanes>;

static_assert(std::is_same_v<slamb::word_of<float>, std::uint32_t>);
static_assert(std::is_same_v<slamb::word_of<f32x16>, u32x16>);

constexpr std::array<std::uint32_t, 13> corners{0,           1,           2,           0x7FFFU,     0x8000U,
                                                0xFFFFU,     0x10000U,    0x7F800000U, 0x7FC12345U, 0x7FFFFFFFU,
                                                0x80000000U, 0x80000001U, 0xFFFFFFFFU};

/// Every pair of corners at every lane, then random pairs.
std::vector<std::array<word_array, 2>> operands() {
  std::vector<std::array<word_array, 2>> all;
  for (std::size_t first = 0; first < corners.size(); ++first)
    for (std::size_t second = 0; second < corners.size(); ++second) {
      std::array<word_array, 2> pair{};
      for (std::size_t i = 0; i < lanes; ++i) {
        pair[0][i] = corners[(first + i) % corners.size()];
        pair[1][i] = corners[(second + 2 * i) % corners.size()];
      }
      all.push_back(pair);
    }
  test_support::random_source source(1);
  for (int n = 0; n < 300; ++n) {
    std::array<word_array, 2> pair{};
    for (word_array& a : pair)
      for (std::uint32_t& x : a) x = static_cast<std::uint32_t>(source.next());
    all.push_back(pair);
  }
  return all;
}

word_array lanes_of(const u32x16& x) {
  word_array all;
  x.store(all.data());
  return all;
}

lane_array lanes_of(const f32x16& x) {
  lane_array all;
  x.store(all.data());
  return all;
}

/// The number of lanes, over all operands, that differ between a vector operation and its scalar twin.
template <class Vector, class Scalar>
std::size_t differences(Vector vector, Scalar scalar) {
  std::size_t different = 0;
  for (const auto& [a, b] : operands()) {
    const word_array got = lanes_of(vector(u32x16::load(a.data()), u32x16::load(b.data())));
    for (std::size_t i = 0; i < lanes; ++i) different += got[i] == scalar(a[i], b[i]) ? 0 : 1;
  }
  return different;
}

/// As above, with one formula for both, as in an element function.
template <class Both>
std::size_t differences(Both both) {
  return differences(both, both);
}

/// As above, for an operation that makes a float of a word; compares bits.
template <class Both>
std::size_t differences_of_reals(const std::vector<std::uint32_t>& inputs, Both both) {
  std::size_t different = 0;
  for (std::size_t first = 0; first + lanes <= inputs.size(); first += lanes) {
    const lane_array got = lanes_of(both(u32x16::load(inputs.data() + first)));
    for (std::size_t i = 0; i < lanes; ++i)
      different +=
          std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(both(inputs[first + i])) ? 0 : 1;
  }
  return different;
}

/// Words below `bound`, with the corners; small ones are more frequent.
std::vector<std::uint32_t> words_below(std::uint64_t bound) {
  std::vector<std::uint32_t> all;
  for (const std::uint32_t corner : corners)
    if (corner < bound) all.push_back(corner);
  test_support::random_source source(2);
  while (all.size() % lanes != 0 || all.size() < 4096)
    all.push_back(static_cast<std::uint32_t>(source.below(bound) >> source.below(32)));
  return all;
}

}  // namespace

TEST_CASE("simd_words: the comparison of lanes finds differences") {
  CHECK(differences([](const u32x16& a, const u32x16& b) { return a + b; },
                    [](std::uint32_t a, std::uint32_t b) { return a - b; }) > 0);
  CHECK(differences([](const u32x16& a, const u32x16& b) { return a | b; },
                    [](std::uint32_t a, std::uint32_t b) { return a == 0x80000001U ? 0U : a | b; }) > 0);
  const auto other_at_largest = [](auto x) {
    using slamb::to_real;
    if constexpr (std::is_same_v<decltype(x), u32x16>)
      return to_real(x);
    else
      return x == 0x7FFFFFFFU ? 1.0F : to_real(x);
  };
  CHECK(differences_of_reals(words_below(std::uint64_t{1} << 31U), other_at_largest) == 1);
}

TEST_CASE("simd_words: a broadcast, a load and a store keep every bit") {
  for (const std::uint32_t corner : corners) {
    word_array expected;
    expected.fill(corner);
    CHECK(lanes_of(u32x16(corner)) == expected);
  }
  std::array<std::uint32_t, lanes + 2> memory{};
  const word_array distinct = operands().back()[0];
  u32x16::load(distinct.data()).store(memory.data() + 1);
  CHECK(memory.front() == 0);
  CHECK(memory.back() == 0);
  for (std::size_t i = 0; i < lanes; ++i) CHECK(memory[i + 1] == distinct[i]);
}

TEST_CASE("simd_words: arithmetic and logic equal those of unsigned integers") {
  CHECK(differences([](const auto& a, const auto& b) { return a + b; }) == 0);
  CHECK(differences([](const auto& a, const auto& b) { return a - b; }) == 0);
  CHECK(differences([](const auto& a, const auto& b) { return a & b; }) == 0);
  CHECK(differences([](const auto& a, const auto& b) { return a | b; }) == 0);
  CHECK(differences([](const auto& a, const auto& b) { return a ^ b; }) == 0);
}

TEST_CASE("simd_words: shifts by every count") {
  for (int count = 0; count < 32; ++count) {
    CAPTURE(count);
    CHECK(differences([count](const auto& a, const auto&) { return a << count; }) == 0);
    CHECK(differences([count](const auto& a, const auto&) { return a >> count; }) == 0);
  }
  CHECK(differences([](const auto& a, const auto&) { return a << 16; }) == 0);  // counts known to the compiler
  CHECK(differences([](const auto& a, const auto&) { return a >> 31; }) == 0);
}

TEST_CASE("simd_words: comparisons treat words as unsigned integers") {
  using slamb::select;
  CHECK(differences([](const auto& a, const auto& b) { return select(a < b, a, b); }) == 0);
  CHECK(differences([](const auto& a, const auto& b) { return select(a == b, b + b, a); }) == 0);
  CHECK(differences([](const u32x16& a, const u32x16& b) { return select(a < b, a, b); },
                    [](std::uint32_t a, std::uint32_t b) {
                      return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) ? a : b;
                    }) > 0);
}

TEST_CASE("simd_words: select takes each lane by its bit of the mask") {
  const auto [yes, no] = operands().back();
  for (std::uint32_t bits = 0; bits < 0x10000U; bits += 251) {
    const word_array got = lanes_of(select(mask_of(bits), u32x16::load(yes.data()), u32x16::load(no.data())));
    for (std::size_t i = 0; i < lanes; ++i) REQUIRE(got[i] == ((bits >> i & 1U) != 0 ? yes[i] : no[i]));
  }
}

TEST_CASE("simd_words: the bits of a float and back, also those of NaN") {
  using slamb::as_real;
  using slamb::as_word;
  CHECK(differences([](const auto& a, const auto&) { return as_word(as_real(a)); }) == 0);
  CHECK(differences([](const auto& a, const auto&) { return as_word(as_real(a)); },
                    [](std::uint32_t a, std::uint32_t) { return a; }) == 0);
  CHECK(as_word(1.0F) == 0x3F800000U);
  CHECK(as_word(-0.0F) == 0x80000000U);
  CHECK(as_real(0x7F7FFFFFU) == std::numeric_limits<float>::max());
}

TEST_CASE("simd_words: integers are converted to the nearest floats") {
  using slamb::to_real;
  CHECK(differences_of_reals(words_below(std::uint64_t{1} << 31U), [](const auto& a) { return to_real(a); }) == 0);
  CHECK(to_real(std::uint32_t{0}) == 0.0F);
  CHECK(to_real(16777217U) == 16777216.0F);  // a tie, to even
  CHECK(to_real(16777219U) == 16777220.0F);
}

TEST_CASE("simd_words: floats are truncated to integers") {
  using slamb::to_word;
  test_support::random_source source(3);
  std::vector<float> inputs{0.0F, -0.0F, 0.5F, 0.99999994F, 1.0F, 1.5F, 8388607.5F, 16777216.0F, 2147483520.0F, 1e-45F};
  while (inputs.size() % lanes != 0 || inputs.size() < 4096)
    inputs.push_back(static_cast<float>(std::ldexp(source.uniform(), static_cast<int>(source.below(40)) - 9)));
  for (std::size_t first = 0; first < inputs.size(); first += lanes) {
    const word_array got = lanes_of(to_word(f32x16::load(inputs.data() + first)));
    for (std::size_t i = 0; i < lanes; ++i) {
      const float x = inputs[first + i];
      REQUIRE(got[i] == to_word(x));
      REQUIRE(got[i] == static_cast<std::uint32_t>(std::floor(static_cast<double>(x))));
    }
  }
}

TEST_CASE("simd_words: the absolute value clears the sign, of zero and NaN as well") {
  using slamb::absolute;
  using slamb::as_real;
  using slamb::as_word;
  CHECK(differences([](const auto& a, const auto&) { return as_word(absolute(as_real(a))); },
                    [](std::uint32_t a, std::uint32_t) { return a & 0x7FFFFFFFU; }) == 0);
  CHECK(as_word(absolute(-0.0F)) == 0);
  CHECK(absolute(-2.5F) == 2.5F);
}

}  // namespace backend_host_simd_words_tests
