// The random numbers by which numbers are rounded, from their definition in docs/algorithms/precision.md.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "slamb/core/random.hpp"

namespace test_support {

/// r of element i of a tensor in step t, for the update.
inline std::uint32_t rounding_draw(std::uint64_t seed, std::uint64_t t, std::uint64_t tensor, std::uint64_t i) {
  // The halves of row ⌊i/8⌋ mod 8, of the element in column 0.
  static const std::initializer_list<std::uint64_t> rows[8] = {{0},       {0, 1},    {0, 2},    {0, 3},
                                                               {0, 1, 2}, {0, 1, 3}, {0, 1, 4}, {0, 1, 5}};
  const auto words = slamb::philox(seed, (std::uint64_t{1} << 61) + i / 64, (t << 32) | tensor);
  std::uint32_t r = 0;
  for (const std::uint64_t half : rows[i % 64 / 8]) {
    const std::uint64_t k = (i % 8 + half) % 8;
    r ^= k % 2 == 0 ? words.word[k / 2] & 0xFFFFU : words.word[k / 2] >> 16;
  }
  return r;
}

}  // namespace test_support
