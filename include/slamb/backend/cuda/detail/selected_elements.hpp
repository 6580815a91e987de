// Finds the selected elements of a tile with all threads of a block. Each thread asks the selection about sixteen consecutive
// elements. Then every thread can read for any element if it is selected, how many elements before it are, and its discount.
// If a round robin deals elements in small groups that send one element each, threads first compute the groups, because there
// are fewer of them.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "slamb/backend/cuda/detail/group.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/compressor/detail/round_robin.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail::cuda {

/// A selection whose member `runs` can run on a device. It declares this by `static constexpr bool runs_on_device = true`.
template <class S>
concept has_runs_on_device = capability::has_runs<S> && requires {
  requires S::runs_on_device;
};

/// A selection without ages that computes the bits of up to sixteen elements at once: word(coordinate, count), also on a device.
template <class S>
concept has_words = !capability::has_age<S> && requires(const S& s, coordinate c) {
  s.word(c, 16U);
};

/// Calls visit(begin, length, age) for consecutive parts of [c.index, c.index + count). Selected elements have age 0; without
/// ages in the selection, other elements have age 1.
template <class Selection, class Visit>
SLAMB_HOST_DEVICE void for_each_run(const Selection& selection, coordinate c, std::uint32_t count, const Visit& visit) {
  if constexpr (has_runs_on_device<Selection>) {
    selection.runs(c, count, visit);
  } else {
    for (std::uint32_t i = 0; i < count; ++i, ++c.index) {
      if constexpr (capability::has_age<Selection>)
        visit(c.index, std::uint64_t{1}, static_cast<std::uint32_t>(selection.age(c)));
      else
        visit(c.index, std::uint64_t{1}, selection.selects(c) ? 0U : 1U);
    }
  }
}

/// A word whose lowest `count` ≤ 31 bits are 1.
SLAMB_HOST_DEVICE inline std::uint32_t low_bits(std::uint32_t count) { return (1U << count) - 1U; }

/// A selection that may deal its elements in small groups.
template <class S>
concept may_deal_small_groups = std::same_as<S, ::slamb::detail::round_robin_selection>;

/// The position of the groups of a piece.
struct grouped_piece {
  std::uint32_t slots = 0;  ///< elements of a group; 0: the piece is not in groups
  std::uint32_t first = 0;  ///< the piece's first element, counted from the first element of the first known group
  /// The number of elements from the first on that are in whole groups. The last group of a tensor may be smaller.
  std::uint32_t in_whole = 0;
  std::uint32_t per_group = 0;  ///< 2^20 / slots, rounded up

  /// The group of element i of the piece, and its position there. The multiplication is exact for 2^20 / 32 elements.
  SLAMB_HOST_DEVICE std::uint32_t group_of(std::uint32_t i) const { return ((first + i) * per_group) >> 20U; }
  SLAMB_HOST_DEVICE std::uint32_t position_of(std::uint32_t i, std::uint32_t group) const {
    return first + i - group * slots;
  }
};

/// The groups of a piece with the element that each sends, and the discounts of their elements.
template <std::uint32_t Size, bool Discounted>
struct groups_of_piece {
  using selection_type = ::slamb::detail::round_robin_selection;
  static constexpr std::uint32_t most = Size / selection_type::least_group + 8;
  static constexpr std::uint32_t wide = selection_type::most_group;

  grouped_piece piece;
  ::slamb::detail::dealt_group group[most];
  float discount_value[Discounted ? selection_type::multipliers * wide : 1];  // [multiplier][distance to sent element]

  /// Fills the table of discounts, which is the same for all pieces.
  template <unsigned Threads>
  SLAMB_HOST_DEVICE void prepare(unsigned thread, const selection_type& selection,
                                 capability::staleness_discounts table) {
    if constexpr (Discounted)
      for (std::uint32_t i = thread; i < selection_type::multipliers * wide; i += Threads)
        if (i % wide < selection.slots) discount_value[i] = table[selection.age_at_distance(i / wide, i % wide)];
  }

  /// Computes the groups of the piece, four for each thread: they need one draw of random words.
  template <unsigned Threads>
  SLAMB_HOST_DEVICE void deal(unsigned thread, const selection_type& selection, coordinate c, std::uint32_t count) {
    static_assert(most <= 4 * Threads);
    const std::uint32_t slots = selection.slots;
    const bool is_short = c.index >> 32U == 0;  // because division of 64 bits is slow on a device
    const std::uint64_t four =
        is_short ? static_cast<std::uint32_t>(c.index) / (4 * slots) : c.index / (std::uint64_t{4} * slots);
    const auto first = static_cast<std::uint32_t>(c.index - four * (std::uint64_t{4} * slots));
    if (4 * thread * slots < first + count) {
      ::slamb::detail::dealt_group dealt[4];
      selection.deal_four(4 * (four + thread), c, dealt);
      for (unsigned j = 0; j < 4; ++j) group[4 * thread + j] = dealt[j];
    }
    if (thread != 0) return;
    piece = {slots, first, count, ((1U << 20U) + slots - 1) / slots};
    const std::uint32_t of_last = (first + count) % slots;
    if (of_last != 0 && c.index + count - of_last + slots > c.tensor_size)
      piece.in_whole = of_last < count ? count - of_last : 0;
  }

  /// Bit j is set if element i + j is sent, for j < `count` ≤ 31.
  SLAMB_HOST_DEVICE std::uint32_t bits(std::uint32_t i, std::uint32_t count) const {
    const grouped_piece known = piece;
    std::uint32_t at = known.group_of(i), selected = 0;
    const auto end = static_cast<std::int32_t>(count);
    for (auto begin = -static_cast<std::int32_t>(known.position_of(i, at)); begin < end;
         begin += static_cast<std::int32_t>(known.slots), ++at) {
      const std::int32_t sent = begin + group[at].sent;
      if (sent >= 0 && sent < end) selected |= 1U << static_cast<std::uint32_t>(sent);
    }
    return selected;
  }

  /// β3^age of elements that are all in whole groups.
  template <unsigned W>
  SLAMB_HOST_DEVICE reals<W> discounts(const grouped_piece& known, cuda::group<W> here) const {
    std::uint32_t at = known.group_of(here.i), position = known.position_of(here.i, at);
    ::slamb::detail::dealt_group own = group[at];
    reals<W> all;
    for (unsigned j = 0; j < W; ++j) {
      const std::uint32_t distance = own.sent >= position ? own.sent - position : own.sent + known.slots - position;
      all.of[j] = discount_value[own.which * wide + distance];
      if (j + 1 < W && ++position == known.slots) {
        position = 0;
        own = group[++at];
      }
    }
    return all;
  }
};

/// The selected elements of a piece of a tile, in the shared memory of a block.
template <unsigned Threads, bool DiscountsElements, class Selection>
struct selected_elements {
  static constexpr bool discounts_by_age = DiscountsElements && capability::has_age<Selection>;
  static constexpr bool may_be_in_groups = may_deal_small_groups<Selection>;
  static constexpr std::uint32_t of_thread = 16;
  static constexpr std::uint32_t size = Threads * of_thread;
  struct no_groups {};

  std::uint32_t bits[Threads];    // the selection bits of sixteen elements each
  std::uint32_t before[Threads];  // the number of selected elements before those
  // With a gap after sixteen, so that threads write to different banks.
  float discount_value[discounts_by_age ? size + size / of_thread : 1];
  std::conditional_t<may_be_in_groups, groups_of_piece<size, discounts_by_age>, no_groups> groups;

  /// What all threads know of a piece.
  struct found {
    std::uint32_t selected;  ///< elements
    grouped_piece groups;    ///< `slots` is 0 if it is not in groups
  };

  struct group_of_elements {
    std::uint32_t bits;    ///< bit j: element i + j is selected
    std::uint32_t before;  ///< the number of selected elements of the piece before i
  };
  template <unsigned W>
  SLAMB_ELEMENT group_of_elements next(group<W> at, std::uint32_t& /*passed*/) const {
    const std::uint32_t of_sixteen = bits[at.i / of_thread], first = at.i % of_thread;
    return {of_sixteen >> first, before[at.i / of_thread] + count_of(of_sixteen & low_bits(first))};
  }
  SLAMB_ELEMENT static std::uint32_t number(const found& of_piece, std::uint32_t /*passed*/) {
    return of_piece.selected;
  }

  /// True if the elements of a tensor are processed in groups.
  SLAMB_HOST_DEVICE static bool in_groups(const Selection& selection, const segment& s) {
    if constexpr (may_be_in_groups)
      return !s.dense && selection.deals_small_groups();
    else
      return false;
  }

  /// β3^age of elements of the piece that begins at c. For selections with ages.
  template <unsigned W>
  SLAMB_ELEMENT reals<W> discounts(const found& of_piece, const Selection& selection, coordinate c,
                                   const capability::staleness_discounts& table, group<W> at) const {
    reals<W> all;
    if constexpr (may_be_in_groups) {
      if (of_piece.groups.slots != 0) {
        if (at.i + W <= of_piece.groups.in_whole) return groups.discounts(of_piece.groups, at);
        c.index += at.i;
        for (unsigned j = 0; j < W; ++j, ++c.index) all.of[j] = table[selection.age(c)];
        return all;
      }
    }
    for (unsigned j = 0; j < W; ++j) all.of[j] = discount_value[place_of_discount(at.i + j)];
    return all;
  }

  /// Computes what is the same for all tiles.
  template <class Block>
  SLAMB_HOST_DEVICE void prepare(Block& block, const Selection& selection,
                                 const capability::staleness_discounts& table) {
    if constexpr (may_be_in_groups && discounts_by_age)
      if (selection.deals_small_groups())
        block.each([&](unsigned thread) { groups.template prepare<Threads>(thread, selection, table); });
  }
  /// Finds the selected elements of a piece with all threads of a block.
  template <class Block>
  SLAMB_HOST_DEVICE found find(Block& block, const Selection& selection, const segment& s, const coordinate& c,
                               std::uint32_t count, const capability::staleness_discounts& table) {
    const bool is_in_groups = in_groups(selection, s);
    if constexpr (may_be_in_groups)
      if (is_in_groups)
        block.each([&](unsigned thread) { groups.template deal<Threads>(thread, selection, c, count); });
    block.each([&](unsigned thread) { find_own(thread, selection, s, c, count, table); });
    typename Block::template registers<std::uint32_t> those_before;
    const std::uint32_t all =
        block.exclusive_sum([&](unsigned thread) { return count_of(bits[thread]); }, those_before);
    block.each([&](unsigned thread) { before[thread] = those_before[thread]; });
    if constexpr (may_be_in_groups)
      if (is_in_groups) return {all, groups.piece};
    return {all, {}};
  }

 private:
  /// Finds the selected ones of this thread's elements. The piece has `count` ≤ size elements from c on. Also computes their
  /// discounts if they are needed, the selection has ages, and the piece is neither dense nor in groups.
  SLAMB_HOST_DEVICE void find_own(unsigned thread, const Selection& selection, const segment& s, coordinate c,
                                  std::uint32_t count, capability::staleness_discounts table) {
    const std::uint32_t first = thread * of_thread;
    const std::uint32_t own = first >= count ? 0 : (count - first < of_thread ? count - first : of_thread);
    std::uint32_t selected = 0;
    if (s.dense) {
      selected = low_bits(own);
    } else if (in_groups(selection, s)) {
      if constexpr (may_be_in_groups) selected = own == 0 ? 0 : groups.bits(first, own);
    } else if constexpr (has_words<Selection>) {
      c.index += first;
      selected = own == 0 ? 0 : selection.word(c, own);
    } else {
      c.index += first;
      for_each_run(selection, c, own, [&](std::uint64_t begin, std::uint64_t length, std::uint32_t age) {
        const auto i = static_cast<std::uint32_t>(begin - c.index);
        if (age == 0) selected |= low_bits(static_cast<std::uint32_t>(length)) << i;
        if constexpr (discounts_by_age) {
          const float value = table[age];
          for (std::uint32_t j = 0; j < length; ++j) discount_value[place_of_discount(first + i + j)] = value;
        }
      });
    }
    bits[thread] = selected;
  }

  SLAMB_HOST_DEVICE static std::uint32_t place_of_discount(std::uint32_t i) { return i + i / of_thread; }
};

/// The number of selected elements in a tile, found by all threads of a block.
template <class Block, class Selection>
SLAMB_HOST_DEVICE std::uint64_t count_selected(Block& block, const Selection& selection, const segment& s,
                                               const tile& t) {
  typename Block::template registers<std::uint32_t> before;
  return block.exclusive_sum(
      [&](unsigned thread) {
        if (s.dense) return thread == 0 ? t.count : 0U;
        constexpr std::uint32_t piece = 16;
        std::uint32_t selected = 0;
        for (std::uint32_t first = thread * piece; first < t.count; first += Block::threads * piece) {
          const std::uint32_t count = t.count - first < piece ? t.count - first : piece;
          const coordinate c = coordinate_of(s, t.segment, t.first + first);
          if constexpr (has_words<Selection>)
            selected += count_of(selection.word(c, count));
          else
            for_each_run(selection, c, count, [&](std::uint64_t /*begin*/, std::uint64_t length, std::uint32_t age) {
              if (age == 0) selected += static_cast<std::uint32_t>(length);
            });
        }
        return selected;
      },
      before);
}

}  // namespace slamb::detail::cuda
