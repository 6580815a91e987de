// Independent draws: every block of elements is sent with probability k, drawn afresh at each step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/random.hpp"

namespace slamb::detail {

/// What independent draws send at one step.
struct bernoulli_selection {
  std::uint64_t seed;
  std::uint64_t block;      ///< elements
  std::uint64_t step;       ///< t
  std::uint64_t threshold;  ///< k 2^32

  SLAMB_HOST_DEVICE random_words words_of(std::uint64_t b, std::uint32_t tensor) const {
    return philox(seed, b / 4, (step << 32U) | tensor);
  }

  SLAMB_HOST_DEVICE bool selects(coordinate c) const {
    const std::uint64_t b = c.index / block;
    return words_of(b, c.tensor).word[b % 4] < threshold;
  }

  /// Runs of elements that are sent (0) or not (1); how old the latter are, the optimizer keeps.
  template <class Visit>
  void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
    const std::uint64_t end = c.index + count;
    std::uint64_t b = c.index / block;
    random_words words = words_of(b, c.tensor);
    for (std::uint64_t begin = c.index; begin < end; ++b) {
      if (b % 4 == 0) words = words_of(b, c.tensor);
      const std::uint64_t past = std::min(end, (b + 1) * block);
      visit(begin, past - begin, words.word[b % 4] < threshold ? 0U : 1U);
      begin = past;
    }
  }
};

static_assert(has_runs<bernoulli_selection>);

}  // namespace slamb::detail
