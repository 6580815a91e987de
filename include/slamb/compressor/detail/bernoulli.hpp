// Independent draws: every block of elements is sent with probability k, drawn afresh at each step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/random.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail {

/// The selection of independent draws at one step.
struct bernoulli_selection {
  static constexpr bool runs_on_device = true;

  std::uint64_t seed;
  std::uint64_t block;      ///< elements
  std::uint64_t step;       ///< t
  std::uint64_t threshold;  ///< k 2^32

  SLAMB_HOST_DEVICE random_words words_of(std::uint64_t b, std::uint32_t tensor) const {
    return philox(seed, b / 4, (step << 32U) | tensor);
  }

  SLAMB_HOST_DEVICE bool selects(coordinate c) const {
    const std::uint64_t b = c.index / block;
    return words_of(b, c.tensor).at(b) < threshold;
  }

  /// Visits runs of elements that are sent (0) or not (1). The optimizer stores ages.
  SLAMB_NO_EXEC_CHECK
  template <class Visit>
  SLAMB_HOST_DEVICE void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
    const std::uint64_t end = c.index + count;
    std::uint64_t b = c.index / block;
    random_words words = words_of(b, c.tensor);
    for (std::uint64_t begin = c.index; begin < end; ++b) {
      if (b % 4 == 0) words = words_of(b, c.tensor);
      const std::uint64_t past = (b + 1) * block < end ? (b + 1) * block : end;
      visit(begin, past - begin, words.at(b) < threshold ? 0U : 1U);
      begin = past;
    }
  }

  /// Fills the host's buffers from 64 draws at a time. For blocks of one element; returns false for others.
  bool fill(coordinate c, std::uint32_t count, capability::staleness_discounts /*table*/, std::uint16_t* bits,
            float* /*none*/) const {
    if (block != 1) return false;
    constexpr std::uint32_t counters = 16;  // of four words each
    std::uint32_t word[4][counters];
    for (std::uint64_t counter = c.index / 4; counter * 4 < c.index + count; counter += counters) {
      for (std::uint32_t j = 0; j < counters; ++j) {  // no branch: the compiler can take several counters at once
        const random_words words = philox(seed, counter + j, (step << 32U) | c.tensor);
        for (std::uint32_t w = 0; w < 4; ++w) word[w][j] = words.word[w];
      }
      for (std::uint32_t j = 0; j < 4 * counters; ++j) {
        const std::uint64_t i = counter * 4 + j - c.index;  // wraps around for elements before the first
        if (i >= count) continue;
        set_bit(bits, static_cast<std::uint32_t>(i), word[j % 4][j / 4] < threshold ? 1U : 0U);
      }
    }
    return true;
  }
};

static_assert(capability::has_fill<bernoulli_selection>);

}  // namespace slamb::detail
