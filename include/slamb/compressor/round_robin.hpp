// Round robin: every block of elements belongs to one of C slots for good, and slot t mod C is sent at step t.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/random.hpp"

namespace slamb::detail {

/// What round robin sends at one step.
///
/// A tensor's blocks are taken in groups of C. In group g, block i belongs to slot (a_g i + b_g) mod C, with a_g prime
/// to C and b_g drawn from the key. So every step sends one block of each whole group: where it lies in the payload,
/// how large the payload is, and how old a block is all follow from (index, t). The last group, of r < C blocks, takes
/// the r slots s with ⌊(s+1) r/C⌋ > ⌊s r/C⌋, which makes slot c of n blocks exactly ⌊(c+1) n/C⌋ − ⌊c n/C⌋ blocks large.
struct round_robin_selection {
  static constexpr std::uint32_t multipliers = 8;

  std::uint64_t seed;
  std::uint64_t block;                    ///< elements
  std::uint64_t step;                     ///< t
  std::uint32_t slots;                    ///< C
  std::uint32_t slot;                     ///< t mod C
  std::uint32_t multiplier[multipliers];  ///< prime to C
  std::uint32_t inverse[multipliers];     ///< of the multiplier, mod C

  /// How the blocks of one group are dealt to slots.
  struct deal {
    std::uint32_t size;      ///< blocks in the group
    std::uint32_t rotation;  ///< b_g
    std::uint32_t which;     ///< of the multipliers
  };

  SLAMB_HOST_DEVICE std::uint32_t size_of_group(std::uint64_t group, std::uint64_t blocks) const {
    const std::uint64_t left = blocks - group * slots;
    return left < slots ? static_cast<std::uint32_t>(left) : slots;
  }

  SLAMB_HOST_DEVICE random_words words_of(std::uint64_t group, std::uint32_t tensor) const {
    return philox(seed, group / 4, tensor);
  }

  SLAMB_HOST_DEVICE deal deal_of(std::uint64_t group, std::uint32_t size, const random_words& words) const {
    const std::uint32_t word = words.word[group % 4];
    return {size, scaled_to(word, size), word % multipliers};
  }

  SLAMB_HOST_DEVICE std::uint32_t slot_of(const deal& d, std::uint32_t position) const {
    if (d.size == slots)
      return static_cast<std::uint32_t>((std::uint64_t{multiplier[d.which]} * position + d.rotation) % slots);
    const std::uint64_t dealt = (std::uint64_t{position} + d.rotation) % d.size;
    return static_cast<std::uint32_t>(((dealt + 1) * slots + d.size - 1) / d.size - 1);
  }

  SLAMB_HOST_DEVICE std::uint32_t age_of(std::uint32_t its_slot) const {
    const std::uint32_t since = slot >= its_slot ? slot - its_slot : slot + slots - its_slot;
    return since < step ? since : static_cast<std::uint32_t>(step);  // never sent yet: since the start
  }

  SLAMB_HOST_DEVICE std::uint64_t blocks_in(std::uint64_t elements) const { return (elements + block - 1) / block; }

  SLAMB_HOST_DEVICE std::uint32_t age(coordinate c) const {
    const std::uint64_t b = c.index / block;
    const std::uint64_t group = b / slots;
    const deal d = deal_of(group, size_of_group(group, blocks_in(c.tensor_size)), words_of(group, c.tensor));
    return age_of(slot_of(d, static_cast<std::uint32_t>(b % slots)));
  }

  SLAMB_HOST_DEVICE bool selects(coordinate c) const { return age(c) == 0; }

  /// The position in its group of the block that is sent, or the group's size if none is.
  SLAMB_HOST_DEVICE std::uint32_t sent_position(const deal& d) const {
    if (d.size == slots) {
      const std::uint32_t turned = slot >= d.rotation ? slot - d.rotation : slot + slots - d.rotation;
      return inverse[d.which] * turned % slots;  // below 2^32, for slots < 2^16
    }
    const std::uint64_t below = std::uint64_t{slot} * d.size / slots;
    if ((std::uint64_t{slot} + 1) * d.size / slots == below) return d.size;
    return static_cast<std::uint32_t>((below + d.size - d.rotation) % d.size);
  }

  SLAMB_HOST_DEVICE std::uint64_t selected_before(coordinate c) const {
    const std::uint64_t blocks = blocks_in(c.tensor_size);
    const std::uint64_t b = c.index / block;
    const std::uint64_t group = b / slots;
    const std::uint64_t whole_groups = group * block;  // every whole group before has sent one block
    if (group * slots >= blocks) return whole_groups;
    const deal d = deal_of(group, size_of_group(group, blocks), words_of(group, c.tensor));
    const std::uint32_t sent = sent_position(d);
    if (sent == d.size) return whole_groups;
    const std::uint64_t first = (group * slots + sent) * block;
    const std::uint64_t end = first + block < c.tensor_size ? first + block : c.tensor_size;
    return whole_groups + (c.index <= first ? 0 : (c.index < end ? c.index : end) - first);
  }

  template <class Visit>
  void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
    const std::uint64_t blocks = blocks_in(c.tensor_size);
    const std::uint64_t end = c.index + count;
    std::uint64_t b = c.index / block;
    random_words words = words_of(b / slots, c.tensor);
    for (std::uint64_t begin = c.index; begin < end;) {
      const std::uint64_t group = b / slots;
      if (group % 4 == 0) words = words_of(group, c.tensor);
      const deal d = deal_of(group, size_of_group(group, blocks), words);
      auto position = static_cast<std::uint32_t>(b - group * slots);
      const bool whole = d.size == slots;
      for (std::uint32_t its_slot = slot_of(d, position); position < d.size && begin < end; ++b) {
        const std::uint64_t past = std::min(end, (b + 1) * block);
        visit(begin, past - begin, age_of(its_slot));
        begin = past;
        its_slot += multiplier[d.which];
        if (its_slot >= slots) its_slot -= slots;
        if (++position < d.size && !whole) its_slot = slot_of(d, position);
      }
    }
  }

  /// The same for the host, by copying: with blocks of one element and few slots, the ages of a group are a stretch of
  /// one of eight cycles.
  bool fill(coordinate c, std::uint32_t count, freshness_table table, std::uint16_t* bits, float* freshness) const {
    if (block != 1 || slots > fresh_cycles::most) return false;
    const std::uint64_t whole_groups = c.tensor_size / slots;
    const std::uint64_t first = (c.index + slots - 1) / slots;
    const std::uint64_t last = std::min((c.index + count) / slots, whole_groups);
    if (first >= last) return false;
    const auto fill_each = [&](std::uint64_t from, std::uint64_t to) {
      coordinate part = c;
      part.index = from;
      runs(part, to - from, [&](std::uint64_t begin, std::uint64_t, std::uint32_t its_age) {
        const auto i = static_cast<std::uint32_t>(begin - c.index);
        if (its_age == 0) bits[i / 16] = static_cast<std::uint16_t>(bits[i / 16] | (1U << (i % 16)));
        if (freshness != nullptr) freshness[i] = table[its_age];
      });
    };
    if (freshness != nullptr) {
      fill_groups<true>(c, first, last, table, bits, freshness);
    } else {
      fill_groups<false>(c, first, last, table, bits, freshness);
    }
    if (first * slots > c.index) fill_each(c.index, first * slots);
    if (c.index + count > last * slots) fill_each(last * slots, c.index + count);
    return true;
  }

 private:
  // β3^age at the positions of a group: a group whose sent position is q has the `slots` values from (slots − q) mod
  // slots.
  struct fresh_cycles {
    static constexpr std::uint32_t most = 32;  // slots
    float value[multipliers][2 * most];
  };

  template <bool Freshness>
  void fill_groups(coordinate c, std::uint64_t first, std::uint64_t last, freshness_table table, std::uint16_t* bits,
                   float* freshness) const {
    fresh_cycles cycles;
    if constexpr (Freshness) {
      for (std::size_t which = 0; which < multipliers; ++which) {
        std::uint32_t since = 0;
        for (std::uint32_t i = 0; i < 2 * slots; ++i) {
          cycles.value[which][i] = table[since < step ? since : static_cast<std::uint32_t>(step)];
          since = since >= multiplier[which] ? since - multiplier[which] : since + slots - multiplier[which];
        }
      }
    }
    random_words words = words_of(first, c.tensor);
    auto at = static_cast<std::uint32_t>(first * slots - c.index);
    for (std::uint64_t group = first; group < last; ++group, at += slots) {
      if (group % 4 == 0) words = words_of(group, c.tensor);
      const deal d = deal_of(group, slots, words);
      const std::uint32_t sent = sent_position(d);
      const std::uint32_t i = at + sent;
      bits[i / 16] = static_cast<std::uint16_t>(bits[i / 16] | (1U << (i % 16)));
      if constexpr (Freshness) {
        const float* const from = cycles.value[d.which] + (sent == 0 ? 0 : slots - sent);
        for (std::uint32_t j = 0; j < slots; ++j) freshness[at + j] = from[j];
      }
    }
  }
};

static_assert(has_fill<round_robin_selection> && has_selected_before<round_robin_selection>);

}  // namespace slamb::detail
