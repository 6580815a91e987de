// Round robin: every block of elements has a fixed slot of C, and slot t mod C is sent at step t.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/random.hpp"
#include "slamb/core/real.hpp"

namespace slamb::detail {

/// The block that a group sends.
struct dealt_group {
  std::uint8_t sent;   ///< the position in the group; the group's size if it sends none
  std::uint8_t which;  ///< number of the multiplier
};

/// The selection of round robin at one step.
///
/// A tensor's blocks are divided into groups of C. In group g, block i belongs to slot a_g (i − b_g) mod C. The key gives a_g,
/// prime to C, and b_g. So every step sends one block of each whole group. Its place in the payload, the size of the payload and
/// the age of a block follow from (index, t). The last group, of r < C blocks, takes the r slots s with
/// ⌊(s+1) r/C⌋ > ⌊s r/C⌋, so that slot c of n blocks has exactly ⌊(c+1) n/C⌋ − ⌊c n/C⌋ blocks.
struct round_robin_selection {
  static constexpr bool runs_on_device = true;
  static constexpr std::uint32_t multipliers = 8;

  std::uint64_t seed;
  std::uint64_t block;                    ///< elements
  std::uint64_t step;                     ///< t
  std::uint32_t slots;                    ///< C
  std::uint32_t slot;                     ///< t mod C
  std::uint32_t multiplier[multipliers];  ///< prime to C
  std::uint32_t shift[multipliers];       ///< slot/multiplier mod C: the distance of the sent block from b_g

  /// The assignment of one group's blocks to slots.
  struct deal {
    std::uint32_t size;      ///< blocks in the group
    std::uint32_t rotation;  ///< b_g
    std::uint32_t which;     ///< number of a_g among the multipliers
  };

  SLAMB_HOST_DEVICE std::uint32_t size_of_group(std::uint64_t group, std::uint64_t blocks) const {
    const std::uint64_t left = blocks - group * slots;
    return left < slots ? static_cast<std::uint32_t>(left) : slots;
  }

  SLAMB_HOST_DEVICE random_words words_of(std::uint64_t group, std::uint32_t tensor) const {
    return philox(seed, group / 4, tensor);
  }

  SLAMB_HOST_DEVICE static deal deal_of(std::uint32_t size, std::uint32_t word) {
    return {size, scaled_to(word, size), word % multipliers};
  }

  SLAMB_HOST_DEVICE std::uint32_t slot_of(const deal& d, std::uint32_t position) const {
    const std::uint32_t dealt = position >= d.rotation ? position - d.rotation : position + d.size - d.rotation;
    if (d.size == slots) return multiplier[d.which] * dealt % slots;  // below 2^32, for slots < 2^16
    return static_cast<std::uint32_t>(((std::uint64_t{dealt} + 1) * slots + d.size - 1) / d.size - 1);
  }

  SLAMB_HOST_DEVICE std::uint32_t age_of(std::uint32_t its_slot) const {
    const std::uint32_t since = slot >= its_slot ? slot - its_slot : slot + slots - its_slot;
    return since < step ? since : static_cast<std::uint32_t>(step);  // never sent: since the start
  }

  /// Equal keys: the selections send equally many elements of each tensor.
  std::uint64_t size_key() const noexcept {
    std::uint64_t key = hash_of_nothing;
    for (const std::uint64_t word : {seed, block, std::uint64_t{slots}, std::uint64_t{slot}})
      key = hash_with(key, word);
    return key;
  }

  SLAMB_HOST_DEVICE std::uint64_t blocks_in(std::uint64_t elements) const { return (elements + block - 1) / block; }

  SLAMB_HOST_DEVICE std::uint32_t age(coordinate c) const {
    const std::uint64_t b = c.index / block;
    const std::uint64_t group = b / slots;
    const deal d = deal_of(size_of_group(group, blocks_in(c.tensor_size)), words_of(group, c.tensor).at(group));
    return age_of(slot_of(d, static_cast<std::uint32_t>(b % slots)));
  }

  SLAMB_HOST_DEVICE bool selects(coordinate c) const { return age(c) == 0; }

  /// The position in its group of the block that is sent, or the group's size if none is.
  SLAMB_HOST_DEVICE std::uint32_t sent_position(const deal& d) const {
    std::uint64_t dealt = shift[d.which];
    if (d.size != slots) {
      dealt = std::uint64_t{slot} * d.size / slots;
      if ((std::uint64_t{slot} + 1) * d.size / slots == dealt) return d.size;
    }
    const auto position = static_cast<std::uint32_t>(d.rotation + dealt);
    return position < d.size ? position : position - d.size;
  }

  /// True if blocks are single elements, in groups of a size for which a device should work by group instead of by element. In a
  /// whole group, an element at the distance d = (sent position − its position) mod C is multiplier·d mod C steps old.
  static constexpr std::uint32_t least_group = 8, most_group = 32;
  SLAMB_HOST_DEVICE bool deals_small_groups() const {
    return block == 1 && slots >= least_group && slots <= most_group;
  }

  /// Finds the sent positions of four groups of the tensor of c.
  /// @param first  number of the first group, a multiple of 4
  SLAMB_HOST_DEVICE void deal_four(std::uint64_t first, coordinate c, dealt_group (&to)[4]) const {
    const random_words words = words_of(first, c.tensor);
    for (std::uint32_t j = 0; j < 4; ++j) {
      const deal d = deal_of(size_of_group(first + j, c.tensor_size), words.word[j]);
      to[j] = {static_cast<std::uint8_t>(sent_position(d)), static_cast<std::uint8_t>(d.which)};
    }
  }

  SLAMB_HOST_DEVICE std::uint32_t age_at_distance(std::uint32_t which, std::uint32_t distance) const {
    const std::uint32_t since = multiplier[which] * distance % slots;
    return since < step ? since : static_cast<std::uint32_t>(step);
  }

  SLAMB_HOST_DEVICE std::uint64_t selected_before(coordinate c) const {
    const std::uint64_t blocks = blocks_in(c.tensor_size);
    const std::uint64_t b = c.index / block;
    const std::uint64_t group = b / slots;
    const std::uint64_t whole_groups = group * block;  // every whole group before has sent one block
    if (group * slots >= blocks) return whole_groups;
    const deal d = deal_of(size_of_group(group, blocks), words_of(group, c.tensor).at(group));
    const std::uint32_t sent = sent_position(d);
    if (sent == d.size) return whole_groups;
    const std::uint64_t first = (group * slots + sent) * block;
    const std::uint64_t end = first + block < c.tensor_size ? first + block : c.tensor_size;
    return whole_groups + (c.index <= first ? 0 : (c.index < end ? c.index : end) - first);
  }

  SLAMB_NO_EXEC_CHECK
  template <class Visit>
  SLAMB_HOST_DEVICE void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
    const std::uint64_t blocks = blocks_in(c.tensor_size);
    const std::uint64_t end = c.index + count;
    std::uint64_t b = c.index / block;
    random_words words = words_of(b / slots, c.tensor);
    for (std::uint64_t begin = c.index; begin < end;) {
      const std::uint64_t group = b / slots;
      if (group % 4 == 0) words = words_of(group, c.tensor);
      const deal d = deal_of(size_of_group(group, blocks), words.at(group));
      auto position = static_cast<std::uint32_t>(b - group * slots);
      const bool whole = d.size == slots;
      for (std::uint32_t its_slot = slot_of(d, position); position < d.size && begin < end; ++b) {
        const std::uint64_t past = (b + 1) * block < end ? (b + 1) * block : end;
        visit(begin, past - begin, age_of(its_slot));
        begin = past;
        its_slot += multiplier[d.which];
        if (its_slot >= slots) its_slot -= slots;
        if (++position < d.size && !whole) its_slot = slot_of(d, position);
      }
    }
  }

  /// Fills the host's buffers by copying. With blocks of one element and few slots, the ages of a group are a part of one of
  /// eight cycles. Returns false in other cases.
  bool fill(coordinate c, std::uint32_t count, capability::staleness_discounts table, std::uint16_t* bits,
            float* discount) const {
    if (block != 1 || slots > discount_cycles::most) return false;
    const std::uint64_t whole_groups = c.tensor_size / slots;
    const std::uint64_t first = (c.index + slots - 1) / slots;
    const std::uint64_t last = std::min((c.index + count) / slots, whole_groups);
    if (first >= last) return false;
    const auto fill_each = [&](std::uint64_t from, std::uint64_t to) {
      coordinate part = c;
      part.index = from;
      runs(part, to - from, [&](std::uint64_t begin, std::uint64_t, std::uint32_t its_age) {
        const auto i = static_cast<std::uint32_t>(begin - c.index);
        if (its_age == 0) set_bit(bits, i);
        if (discount != nullptr) discount[i] = table[its_age];
      });
    };
    if (discount != nullptr) {
      fill_groups<true>(c, count, first, last, table, bits, discount);
    } else {
      fill_groups<false>(c, count, first, last, table, bits, discount);
    }
    if (first * slots > c.index) fill_each(c.index, first * slots);
    if (c.index + count > last * slots) fill_each(last * slots, c.index + count);
    return true;
  }

 private:
  // The cycle of β3^age of each multiplier. A group whose sent position is q has `slots` values of its multiplier's cycle, from
  // (slots − q) mod slots on.
  struct discount_cycles {
    static constexpr std::uint32_t most = 32;  // slots
    static constexpr std::uint32_t wide = 16;  // floats that are copied at once
    static constexpr std::uint32_t stride = 2 * most + 2 * wide;
    float value[multipliers * stride];

    discount_cycles(const round_robin_selection& s, capability::staleness_discounts table) {
      for (std::uint32_t which = 0; which < multipliers; ++which) {
        float* const cycle = value + which * stride;
        std::uint32_t since = 0;
        for (std::uint32_t i = 0; i < s.slots; ++i) {
          cycle[i] = table[since < s.step ? since : static_cast<std::uint32_t>(s.step)];
          since = since >= s.multiplier[which] ? since - s.multiplier[which] : since + s.slots - s.multiplier[which];
        }
        for (std::uint32_t from = s.slots; from < 2 * s.slots + wide; from += s.slots) {
          for (std::uint32_t i = 0; i < s.slots; i += wide)
            std::memmove(cycle + from + i, cycle + i, wide * sizeof(float));  // the next copy overwrites the excess
        }
      }
    }

    static void copy(float* to, const float* from) { std::memcpy(to, from, wide * sizeof(float)); }
  };

  struct no_cycles {
    no_cycles(const round_robin_selection& /*s*/, capability::staleness_discounts /*table*/) {}
  };

  // The deals of 64 groups, from 16 calls of philox in loops without a branch, which compilers vectorise.
  struct deals {
    static constexpr std::uint32_t counters = 16;
    std::uint32_t sent[4][counters];  // the position that is sent
    std::uint32_t from[4][counters];  // the beginning of its cycle in discount_cycles

    void draw(const round_robin_selection& s, std::uint64_t counter, std::uint32_t tensor) {
      for (std::uint32_t j = 0; j < counters; ++j) {
        const random_words words = philox(s.seed, counter + j, tensor);
        for (std::uint32_t w = 0; w < 4; ++w) sent[w][j] = words.word[w];
      }
      for (std::uint32_t w = 0; w < 4; ++w) {
        for (std::uint32_t j = 0; j < counters; ++j) {
          const deal d = deal_of(s.slots, sent[w][j]);
          const std::uint32_t dealt = d.rotation + s.shift[d.which];
          const std::uint32_t position = dealt < s.slots ? dealt : dealt - s.slots;
          sent[w][j] = position;
          from[w][j] = d.which * discount_cycles::stride + (position == 0 ? 0 : s.slots - position);
        }
      }
    }
  };

  template <bool Discounted>
  void fill_groups(coordinate c, std::uint32_t count, std::uint64_t first, std::uint64_t last,
                   capability::staleness_discounts table, std::uint16_t* bits, float* discount) const {
    constexpr std::uint32_t wide = discount_cycles::wide;
    const std::conditional_t<Discounted, discount_cycles, no_cycles> cycles(*this, table);
    // Groups up to `last_wide` copy too much, within `count`. The next groups overwrite the excess.
    const bool copies_wide = Discounted && slots <= wide && count >= wide;
    const std::uint64_t last_wide = copies_wide ? std::min(last, (c.index + count - wide) / slots + 1) : first;
    deals drawn;
    for (std::uint64_t counter = first / 4; counter * 4 < last; counter += deals::counters) {
      drawn.draw(*this, counter, c.tensor);
      const std::uint64_t past = std::min(last, (counter + deals::counters) * 4);
      const auto take = [&](std::uint64_t group, const auto& copy) {
        const std::uint64_t j = group / 4 - counter;
        const auto at = static_cast<std::uint32_t>(group * slots - c.index);
        set_bit(bits, at + drawn.sent[group % 4][j]);
        if constexpr (Discounted) copy(discount + at, cycles.value + drawn.from[group % 4][j]);
      };
      const auto copy_all = [&](float* to, const float* from) { std::copy_n(from, slots, to); };
      const std::uint64_t begin = std::max(first, counter * 4);
      const std::uint64_t past_wide = std::clamp(last_wide, begin, past);
      for (std::uint64_t group = begin; group < past_wide; ++group) take(group, discount_cycles::copy);
      for (std::uint64_t group = past_wide; group < past; ++group) take(group, copy_all);
    }
  }
};

static_assert(capability::has_fill<round_robin_selection> && capability::has_selected_before<round_robin_selection>);

/// The constants of all steps of a round robin.
struct round_robin_steps {
  static constexpr std::uint32_t multipliers = round_robin_selection::multipliers;

  std::uint64_t seed;
  std::uint64_t block;                    ///< elements
  std::uint32_t slots;                    ///< C < 2^16
  std::uint32_t multiplier[multipliers];  ///< prime to C
  std::uint32_t inverse[multipliers];     ///< of each, mod C

  SLAMB_HOST_DEVICE round_robin_selection at(std::uint64_t step) const noexcept {
    round_robin_selection s{seed, block, step, slots, static_cast<std::uint32_t>(step % slots), {}, {}};
    for (std::uint32_t i = 0; i < multipliers; ++i) {
      s.multiplier[i] = multiplier[i];
      s.shift[i] = inverse[i] * s.slot % slots;
    }
    return s;
  }
};

}  // namespace slamb::detail
