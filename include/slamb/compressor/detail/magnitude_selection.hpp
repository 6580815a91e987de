// Selects the elements of largest magnitude: on the host by one thread, on a device by the threads of a block.
#pragma once

#include <bit>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail {

/// The threshold between the largest magnitudes and the rest. Keys are the bits of a float without its sign, which have the order
/// of magnitudes.
struct magnitude_threshold {
  std::uint32_t key;   ///< larger keys are chosen
  std::uint32_t ties;  ///< the number of keys equal to `key` that are chosen too: the first ones
};

/// Radix selection: for each digit of the keys, from the highest, a histogram of the remaining keys shows the bin of the wanted
/// rank. Three digits of 11, 10 and 10 bits are the 31 bits.
class magnitude_selection {
 public:
  static constexpr std::uint32_t most = 8192;  ///< elements

  static std::uint32_t key_of(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }

  /// @param values  [count], count ≤ `most`, none NaN
  /// @param wanted  1 … count
  magnitude_threshold threshold(const float* values, std::uint32_t count, std::uint32_t wanted) {
    magnitude_threshold found{0, wanted};
    const auto at_value = [values](std::uint32_t i) { return key_of(values[i]); };
    const auto at_kept = [this](std::uint32_t i) { return candidate_[i]; };
    count = narrow<20, 11>(at_value, count, found);
    count = narrow<10, 10>(at_kept, count, found);
    narrow<0, 10>(at_kept, count, found);
    return found;
  }

 private:
  // Keeps the keys with the digit of the wanted rank, adds the digit to the threshold, and subtracts the number of larger keys.
  template <int Shift, int Bits, class KeyAt>
  std::uint32_t narrow(KeyAt key_at, std::uint32_t count, magnitude_threshold& found) {
    constexpr std::uint32_t bins = 1U << Bits;
    const auto digit_of = [](std::uint32_t key) { return key >> Shift & (bins - 1); };
    for (std::uint32_t bin = 0; bin < bins; ++bin) in_bin_[bin] = 0;
    for (std::uint32_t i = 0; i < count; ++i) ++in_bin_[digit_of(key_at(i))];
    std::uint32_t digit = bins - 1;
    for (; in_bin_[digit] < found.ties; --digit) found.ties -= in_bin_[digit];
    found.key |= digit << Shift;
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t key = key_at(i);
      candidate_[kept] = key;  // if it is not kept, the next one overwrites it
      kept += digit_of(key) == digit ? 1U : 0U;
    }
    return kept;
  }

  std::uint32_t in_bin_[2048];
  std::uint32_t candidate_[most];
};

/// The memory that the threads of a block share in a `magnitude_block_selection`.
struct magnitude_block_memory {
  std::uint32_t in_bin[2048];  // the number of keys with each digit
  magnitude_threshold threshold;
};

/// The same selection by all threads of a block on a device (backend/cuda/detail/emulator.hpp). They count in the same bins, and the
/// counts do not depend on the order of threads.
class magnitude_block_selection {
 public:
  /// Sets the bits of the `wanted` largest of `values` [count], in shared memory.
  template <class Block>
  SLAMB_HOST_DEVICE static void choose(Block& block, magnitude_block_memory& memory, const float* values,
                                       std::uint32_t count, std::uint32_t wanted, std::uint16_t* bits) {
    static_assert(Block::threads * elements == magnitude_selection::most);
    if (count == 0) return;
    block.first([&] { memory.threshold = {0, wanted}; });
    narrow<20, 11>(block, memory, values, count);
    narrow<10, 10>(block, memory, values, count);
    narrow<0, 10>(block, memory, values, count);
    typename Block::template registers<part> mine;
    block.each([&](unsigned thread) { mine[thread] = compare(memory.threshold, values, thread, count); });
    typename Block::template registers<std::uint32_t> before;
    block.exclusive_sum([&](unsigned thread) { return count_of(mine[thread].equal); }, before);
    block.each([&](unsigned thread) {
      const std::uint32_t chosen =
          mine[thread].above | first_of(mine[thread].equal, before[thread], memory.threshold.ties);
      for (std::uint32_t half = 0; half < 2; ++half)
        if (const std::uint32_t first = elements * thread + 16 * half; first < count)
          bits[first / 16] = static_cast<std::uint16_t>(chosen >> (16 * half) & 0xFFFFU);
    });
  }

 private:
  static constexpr std::uint32_t elements = 32;  // consecutive elements of a thread: the bits of a word

  struct part {
    std::uint32_t above;
    std::uint32_t equal;
  };

  // The bits of a float without its sign, which have the order of magnitudes.
  SLAMB_ELEMENT static std::uint32_t key_of(float x) { return as_word(x) & 0x7FFFFFFFU; }

  // Adds the digit of the wanted rank to the threshold, and subtracts the number of keys with a higher digit. Counts only keys
  // with the digits found before.
  template <int Shift, int Bits, class Block>
  SLAMB_HOST_DEVICE static void narrow(Block& block, magnitude_block_memory& memory, const float* values,
                                       std::uint32_t count) {
    constexpr std::uint32_t bins = 1U << Bits;
    constexpr std::uint32_t of_thread = bins / Block::threads;
    const magnitude_threshold known = memory.threshold;  // read before the barrier; written after it
    block.each([&](unsigned thread) {
      for (std::uint32_t bin = thread; bin < bins; bin += Block::threads) memory.in_bin[bin] = 0;
    });
    block.each([&](unsigned thread) {
      const std::uint32_t found = known.key >> (Shift + Bits);
      for (std::uint32_t i = thread; i < count; i += Block::threads) {
        const std::uint32_t key = key_of(values[i]);
        if (key >> (Shift + Bits) == found) Block::add_one(memory.in_bin[key >> Shift & (bins - 1)]);
      }
    });
    // Threads divide the bins in descending order.
    const auto bin_of = [](unsigned thread, std::uint32_t i) { return bins - 1 - (of_thread * thread + i); };
    typename Block::template registers<std::uint32_t> above;
    block.exclusive_sum(
        [&](unsigned thread) {
          std::uint32_t own = 0;
          for (std::uint32_t i = 0; i < of_thread; ++i) own += memory.in_bin[bin_of(thread, i)];
          return own;
        },
        above);
    block.each([&](unsigned thread) {
      if (above[thread] >= known.ties) return;
      std::uint32_t left = known.ties - above[thread];
      for (std::uint32_t i = 0; i < of_thread; ++i) {
        const std::uint32_t bin = bin_of(thread, i);
        if (left <= memory.in_bin[bin]) {
          memory.threshold = {known.key | bin << Shift, left};
          return;
        }
        left -= memory.in_bin[bin];
      }
    });
  }

  // Threads begin at different positions of their elements, because shared memory has 32 banks of one float.
  SLAMB_ELEMENT static part compare(const magnitude_threshold& threshold, const float* values, unsigned thread,
                                    std::uint32_t count) {
    part own{0, 0};
    for (std::uint32_t k = 0; k < elements; ++k) {
      const std::uint32_t j = (k + thread) % elements;
      if (elements * thread + j >= count) continue;
      const std::uint32_t key = key_of(values[elements * thread + j]);
      own.above |= (key > threshold.key ? 1U : 0U) << j;
      own.equal |= (key == threshold.key ? 1U : 0U) << j;
    }
    return own;
  }

  // The lowest ties − before bits of `equal`.
  SLAMB_ELEMENT static std::uint32_t first_of(std::uint32_t equal, std::uint32_t before, std::uint32_t ties) {
    std::uint32_t chosen = 0;
    for (; equal != 0 && before < ties; ++before, equal &= equal - 1) chosen |= equal & (0U - equal);
    return chosen;
  }
};

}  // namespace slamb::detail
