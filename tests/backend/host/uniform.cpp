// Uniform numbers of many counters at once, compared with one counter at a time.
#include "slamb/backend/host/detail/uniform.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slamb/core/random.hpp"
#include "support/generate.hpp"

namespace backend_host_uniform_tests {
namespace {

constexpr float untouched = -1.0F;

float one_number(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  const slamb::detail::random_words words = slamb::philox(seed, element / 8, stream);
  const auto place = static_cast<std::uint32_t>(element % 8);
  const std::uint32_t bits = words.word[place / 2] >> (16 * (place % 2)) & 0xFFFFU;
  return static_cast<float>((bits + 0.5) / 65536.0);
}

/// count + 16 numbers, of which the last 16 must stay unchanged.
std::vector<float> by_hand(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, std::uint32_t count) {
  std::vector<float> numbers(count + 16, untouched);
  for (std::uint32_t i = 0; i < count; ++i) numbers[i] = one_number(seed, stream, first + i);
  return numbers;
}

std::vector<float> filled(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, std::uint32_t count) {
  std::vector<float> numbers(count + 16, untouched);
  slamb::detail::host::fill_uniform(seed, stream, first, count, numbers.data());
  return numbers;
}

}  // namespace

TEST_CASE("uniform: other seeds, streams and elements have other numbers") {
  const std::vector<float> numbers = filled(1, 2, 8, 200);
  CHECK(numbers != by_hand(3, 2, 8, 200));
  CHECK(numbers != by_hand(1, 3, 8, 200));
  CHECK(numbers != by_hand(1, 2, 16, 200));
  CHECK(numbers != by_hand(std::uint64_t{1} << 32U | 1U, 2, 8, 200));
  CHECK(numbers != by_hand(1, std::uint64_t{1} << 32U | 2U, 8, 200));
}

TEST_CASE("uniform: the numbers of an element do not depend on the count, and nothing is written past the end") {
  for (std::uint32_t count = 0; count < 300; ++count) {
    CAPTURE(count);
    CHECK(filled(5, 6, 8 * count, count) == by_hand(5, 6, 8 * count, count));
  }
}

TEST_CASE("uniform: seeds, streams and elements of 64 bits, also when the lower half overflows") {
  const std::uint64_t large = 0xFEDCBA9876543210U;
  CHECK(filled(large, 1, 0, 130) == by_hand(large, 1, 0, 130));
  CHECK(filled(1, large, 0, 130) == by_hand(1, large, 0, 130));
  for (std::uint64_t before = 0; before <= 136; before += 8) {
    const std::uint64_t first = (std::uint64_t{1} << 35U) - before;  // shortly before counter 2^32
    CAPTURE(before);
    CHECK(filled(1, 2, first, 260) == by_hand(1, 2, first, 260));
  }
}

TEST_CASE("uniform: between 0 and 1, a multiple of 2^-17, spread evenly") {
  constexpr std::uint32_t count = 1U << 20U;
  std::vector<float> numbers = filled(9, 1, 0, count);
  numbers.resize(count);
  std::vector<std::uint32_t> of_sixteenth(16, 0);
  double sum = 0.0;
  for (const float x : numbers) {
    REQUIRE(x > 0.0F);
    REQUIRE(x < 1.0F);
    REQUIRE(std::fmod(static_cast<double>(x) * 131072.0, 2.0) == 1.0);
    ++of_sixteenth[static_cast<std::size_t>(x * 16.0F)];
    sum += static_cast<double>(x);
  }
  CHECK(std::abs(sum / count - 0.5) < 5.0 / std::sqrt(12.0 * count));
  for (const std::uint32_t n : of_sixteenth)
    CHECK(std::abs(n - count / 16.0) < 5.0 * std::sqrt(count * (1.0 / 16.0) * (15.0 / 16.0)));
}

}  // namespace backend_host_uniform_tests
