// Which elements of a tile a selection sends, as the threads of a block find it out: each looks at sixteen consecutive
// elements, and then all know of any element whether it is selected, how many before it are, and how fresh it is.
#pragma once

#include <cstdint>

#include "slamb/backend/cuda/scalar.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/core/selected_pass.hpp"

namespace slamb::cuda {

/// A selection whose member `runs` can run on a device, and says so: `static constexpr bool runs_on_device = true`.
template <class S>
concept has_runs_on_device = has_runs<S> && requires {
  requires S::runs_on_device;
};

/// Calls visit(begin, length, age) for consecutive parts of [c.index, c.index + count); age is 0 of what is selected.
template <class Selection, class Visit>
SLAMB_HOST_DEVICE void for_each_run(const Selection& selection, coordinate c, std::uint32_t count, const Visit& visit) {
  if constexpr (has_runs_on_device<Selection>) {
    selection.runs(c, count, visit);
  } else {
    for (std::uint32_t i = 0; i < count; ++i, ++c.index) {
      if constexpr (has_age<Selection>)
        visit(c.index, std::uint64_t{1}, static_cast<std::uint32_t>(selection.age(c)));
      else
        visit(c.index, std::uint64_t{1}, selection.selects(c) ? 0U : 1U);
    }
  }
}

/// Ones in the bits below `count` ≤ 31.
SLAMB_HOST_DEVICE inline std::uint32_t low_bits(std::uint32_t count) { return (1U << count) - 1U; }

/// What the threads of a block know of a piece of a tile. Lives in the memory that they share.
template <unsigned Threads, bool Freshness>
struct selected_elements {
  static constexpr std::uint32_t of_thread = 16;
  static constexpr std::uint32_t size = Threads * of_thread;

  std::uint32_t bits[Threads];                                 // of sixteen elements each
  std::uint32_t before[Threads];                               // how many are selected before those
  float fresh_value[Freshness ? size + size / of_thread : 1];  // a gap after sixteen: threads write to different banks

  SLAMB_HOST_DEVICE bool is_selected(std::uint32_t i) const {
    return ((bits[i / of_thread] >> (i % of_thread)) & 1U) != 0;
  }
  SLAMB_HOST_DEVICE std::uint32_t selected_before(std::uint32_t i) const {
    return before[i / of_thread] + count_of(bits[i / of_thread] & low_bits(i % of_thread));
  }
  SLAMB_HOST_DEVICE float& freshness(std::uint32_t i) { return fresh_value[i + i / of_thread]; }

  /// Finds out about this thread's elements of `count` ≤ size from c. Freshness is found if it is asked for and the
  /// selection has ages.
  template <class Selection>
  SLAMB_HOST_DEVICE void find(unsigned thread, const Selection& selection, const segment& s, coordinate c,
                              std::uint32_t count, freshness_table table) {
    const std::uint32_t first = thread * of_thread;
    const std::uint32_t own = first >= count ? 0 : (count - first < of_thread ? count - first : of_thread);
    std::uint32_t selected = 0;
    if (s.dense) {
      selected = low_bits(own);
      if constexpr (Freshness)
        for (std::uint32_t i = 0; i < own; ++i) freshness(first + i) = 1.0F;
    } else {
      c.index += first;
      for_each_run(selection, c, own, [&](std::uint64_t begin, std::uint64_t length, std::uint32_t age) {
        const auto i = static_cast<std::uint32_t>(begin - c.index);
        if (age == 0) selected |= low_bits(static_cast<std::uint32_t>(length)) << i;
        if constexpr (Freshness && has_age<Selection>) {
          const float value = table[age];
          for (std::uint32_t j = 0; j < length; ++j) freshness(first + i + j) = value;
        }
      });
    }
    bits[thread] = selected;
  }
};

/// Lets all threads of a block find out. Returns how many of the `count` elements are selected.
template <class Block, class Elements, class Selection>
SLAMB_HOST_DEVICE std::uint32_t find_selected(Block& block, Elements& elements, const Selection& selection,
                                              const segment& s, const coordinate& c, std::uint32_t count,
                                              const freshness_table& table) {
  block.each([&](unsigned thread) { elements.find(thread, selection, s, c, count, table); });
  typename Block::template registers<std::uint32_t> before;
  const std::uint32_t all =
      block.exclusive_sum([&](unsigned thread) { return count_of(elements.bits[thread]); }, before);
  block.each([&](unsigned thread) { elements.before[thread] = before[thread]; });
  return all;
}

}  // namespace slamb::cuda
