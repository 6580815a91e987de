// Random words: Philox compared with its published vectors, and the properties of a counter-based generator.
#include "slamb/core/random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace core_random_tests {
namespace {

using slamb::philox;
using slamb::detail::random_words;
using slamb::detail::scaled_to;

/// One of the published vectors of Philox: counter and key as 32-bit words, least significant first.
struct known_answer {
  std::array<std::uint32_t, 4> counter;
  std::array<std::uint32_t, 2> key;
  std::array<std::uint32_t, 4> words;
};

constexpr std::array<known_answer, 3> known_answers{{
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
}};

constexpr std::uint64_t joined(std::uint32_t low, std::uint32_t high) { return (std::uint64_t{high} << 32U) | low; }

constexpr bool agrees(const random_words& got, const std::array<std::uint32_t, 4>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (got.word[i] != expected[i]) return false;
  return true;
}

constexpr random_words words_of(const known_answer& a) {
  return philox(joined(a.key[0], a.key[1]), joined(a.counter[0], a.counter[1]), joined(a.counter[2], a.counter[3]));
}

// Philox is a constant expression: the compiler computes the words.
static_assert(agrees(words_of(known_answers[0]), known_answers[0].words));

/// The number of bits in which two draws differ.
int distance(const random_words& a, const random_words& b) {
  int bits = 0;
  for (std::size_t i = 0; i < 4; ++i) bits += std::popcount(a.word[i] ^ b.word[i]);
  return bits;
}

}  // namespace

TEST_CASE("philox: gives the published vectors") {
  for (const known_answer& a : known_answers) CHECK(agrees(words_of(a), a.words));
}

TEST_CASE("philox: the check of the vectors finds other words, and a swap of key and counter") {
  const known_answer& pi = known_answers[2];
  CHECK_FALSE(agrees(words_of(known_answers[0]), known_answers[1].words));
  CHECK_FALSE(agrees(
      philox(joined(pi.key[1], pi.key[0]), joined(pi.counter[0], pi.counter[1]), joined(pi.counter[2], pi.counter[3])),
      pi.words));
  CHECK_FALSE(agrees(
      philox(joined(pi.key[0], pi.key[1]), joined(pi.counter[2], pi.counter[3]), joined(pi.counter[0], pi.counter[1])),
      pi.words));
}

TEST_CASE("philox: every bit of key and counter moves about half of the bits of the words") {
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << static_cast<unsigned>(bit);
    int key = 0, low = 0, high = 0;
    constexpr int draws = 32;
    for (std::uint64_t i = 0; i < draws; ++i) {
      const random_words words = philox(i, i * 3, i * 5);
      key += distance(words, philox(i ^ one, i * 3, i * 5));
      low += distance(words, philox(i, (i * 3) ^ one, i * 5));
      high += distance(words, philox(i, i * 3, (i * 5) ^ one));
    }
    // 4096 bits, each of which differs with probability 1/2: a standard deviation of 32.
    for (const int moved : {key, low, high}) {
      CHECK(moved > 64 * draws - 5 * 32);
      CHECK(moved < 64 * draws + 5 * 32);
    }
  }
}

TEST_CASE("scaled_to: stays below n, keeps the order, and reaches the ends") {
  for (const std::uint32_t n : {1U, 2U, 3U, 10U, 1000U, 65535U, 0x80000000U, 0xFFFFFFFFU}) {
    CHECK(scaled_to(0, n) == 0);
    CHECK(scaled_to(0xFFFFFFFFU, n) == n - 1);
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const std::uint32_t now = scaled_to(i << 20U, n);
      REQUIRE(now < n);
      REQUIRE(now >= before);
      before = now;
    }
  }
}

TEST_CASE("scaled_to: the words of philox fall evenly on any number of bins") {
  for (const std::uint32_t n : {2U, 7U, 10U, 97U}) {
    std::vector<int> count(n, 0);
    constexpr std::uint64_t draws = 25000;
    for (std::uint64_t i = 0; i < draws; ++i)
      for (const std::uint32_t word : philox(11, i, 0).word) ++count[scaled_to(word, n)];
    const double expected = 4.0 * draws / n;
    double chi_square = 0.0;
    for (const int c : count) chi_square += (c - expected) * (c - expected) / expected;
    const double freedom = n - 1.0;
    CHECK(chi_square < freedom + 5.0 * std::sqrt(2.0 * freedom) + 10.0);
    CHECK(chi_square > freedom - 5.0 * std::sqrt(2.0 * freedom) - 0.5);
  }
}

}  // namespace core_random_tests
