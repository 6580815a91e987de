// The selected elements of a piece of a tile, sixteen at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "slamb/backend/host/detail/positions.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Calls visit(begin, length, age) for runs that cover [c.index, c.index + count), in the fastest way that the selection offers.
template <class Selection, class Visit>
void for_each_run(const Selection& selection, coordinate c, std::uint64_t count, Visit&& visit) {
  if constexpr (capability::has_runs<Selection>) {
    selection.runs(c, count, visit);
  } else {
    const std::uint64_t end = c.index + count;
    for (; c.index != end; ++c.index) {
      if constexpr (capability::has_age<Selection>)
        visit(c.index, std::uint64_t{1}, static_cast<std::uint32_t>(selection.age(c)));
      else
        visit(c.index, std::uint64_t{1}, selection.selects(c) ? 0U : 1U);
    }
  }
}

/// The bits of a piece's selected elements and, if `Discounted` and the selection has ages, the staleness discounts of all. Fits
/// in the first-level cache.
template <bool Discounted, class Selection>
class selected_elements {
 public:
  static constexpr std::uint32_t size = 2048;  ///< elements of a piece

  struct found {};  ///< of a piece; nothing beside these bits
  /// Finds those of a piece.
  template <class Team>
  found find(Team& /*team*/, const Selection& selection, const segment& s, const coordinate& c, std::uint32_t count,
             const capability::staleness_discounts& table) {
    std::fill(std::begin(bits_), std::end(bits_), std::uint16_t{0});
    if (s.dense)
      select(0, count);
    else
      fill(selection, c, count, table);
    return {};
  }
  template <class Team>
  static void prepare(Team& /*team*/, const Selection& /*selection*/,
                      const capability::staleness_discounts& /*table*/) noexcept {}

  struct group {
    std::uint32_t bits;    ///< of selected elements
    std::uint32_t before;  ///< selected elements of the piece before them
  };
  /// Sixteen elements of the piece. To be called once for each, in order.
  /// @param passed  the selected elements so far, which it adds to; 0 at first
  template <class At>
  SLAMB_ALWAYS_INLINE group next(At at, std::uint32_t& passed) const {
    const std::uint32_t bits = bits_[at.i / lanes];
    const std::uint32_t before = passed;
    passed += count_of(bits);
    return {bits, before};
  }
  /// The number of selected elements of the piece, once `next` has been called for all.
  static std::uint32_t number(found /*of_piece*/, std::uint32_t passed) noexcept { return passed; }
  /// β3^age, by the ages of the selection.
  template <class At>
  SLAMB_ALWAYS_INLINE f32x16 discounts(found /*of_piece*/, const Selection& /*selection*/, const coordinate& /*c*/,
                                       const capability::staleness_discounts& /*table*/, At at) const {
    return f32x16::load(discount_ + at.i);
  }

  /// Those of a tile.
  static std::uint64_t count_in(const Selection& selection, const segment& s, std::uint32_t tensor, const tile& t) {
    coordinate c = coordinate_of(s, tensor, t.first);
    const std::uint64_t end = t.first + t.count;
    if constexpr (capability::has_selected_before<Selection>) {
      const std::uint64_t before = selection.selected_before(c);
      c.index = end;
      return selection.selected_before(c) - before;
    } else {
      std::uint64_t all = 0;
      int no_team = 0;
      for (selected_elements piece; c.index != end;) {
        const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(size, end - c.index));
        piece.find(no_team, selection, s, c, count, {});
        for (const std::uint16_t bits : piece.bits_) all += count_of(bits);
        c.index += count;
      }
      return all;
    }
  }

 private:
  static constexpr bool has_discounts = Discounted && capability::has_age<Selection>;

  void fill(const Selection& selection, const coordinate& c, std::uint32_t count,
            const capability::staleness_discounts& table) {
    if constexpr (capability::has_fill<Selection>)
      if (selection.fill(c, count, table, bits_, has_discounts ? discount_ : nullptr)) return;
    for_each_run(selection, c, count, [&](std::uint64_t begin, std::uint64_t length, std::uint32_t age) {
      const auto first = static_cast<std::uint32_t>(begin - c.index);
      const auto past = first + static_cast<std::uint32_t>(length);
      if (age == 0) select(first, past - first);
      if constexpr (has_discounts) set_discount(first, past, table[age]);
    });
  }
  void set_discount(std::uint32_t begin, std::uint32_t past, float value) {
    for (; begin + lanes <= past; begin += lanes) f32x16(value).store(discount_ + begin);
    for (; begin < past; ++begin) discount_[begin] = value;
  }
  void select(std::uint32_t begin, std::uint32_t length) {
    if (length == 1) {
      set_bit(bits_, begin);
      return;
    }
    for (const std::uint32_t end = begin + length; begin < end;) {
      const std::uint32_t count = std::min(end - begin, lanes - begin % lanes);
      const std::uint32_t ones = ((1U << count) - 1U) << (begin % lanes);
      bits_[begin / lanes] = static_cast<std::uint16_t>(bits_[begin / lanes] | ones);
      begin += count;
    }
  }

  std::uint16_t bits_[size / lanes];
  alignas(64) float discount_[has_discounts ? size : 1];
};

/// The number of selected elements in a tile.
template <class Team, class Selection>
std::uint64_t count_selected(Team& /*team*/, const Selection& selection, const segment& s, const tile& t) {
  return s.dense ? t.count : selected_elements<false, Selection>::count_in(selection, s, t.segment, t);
}

/// Writes the selected of sixteen values, one after another, to `to`; and reads them, with 0 for the others.
template <position At>
SLAMB_ALWAYS_INLINE void compress(std::uint32_t bits, const f32x16& x, float* to, At /*at*/) {
  pack(bits, x, to);
}
template <position At>
SLAMB_ALWAYS_INLINE f32x16 expand(std::uint32_t bits, const float* from, At /*at*/) {
  return unpack(bits, from);
}

/// table[i] of each lane.
template <position At>
SLAMB_ALWAYS_INLINE f32x16 looked_up(const capability::staleness_discounts& table, const u32x16& i, At /*at*/) {
  std::uint32_t index[lanes];
  alignas(64) float found[lanes];
  i.store(index);
  for (int lane = 0; lane < lanes; ++lane) found[lane] = table[index[lane]];
  return f32x16::load(found);
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
