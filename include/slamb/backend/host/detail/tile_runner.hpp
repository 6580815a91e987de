// Runs a pass over one tile, sixteen elements at a time. A sparse pass also works on the tile's part of the payload.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/tile_arrays.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "slamb finds overflowed gradients by NaN and infinity: compile without -ffast-math and -ffinite-math-only"
#endif

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// The sums and maxima of one tile, and the result of its checks.
template <int Count, int Maxima = 0>
struct tile_sums {
  double_sum sum[static_cast<std::size_t>(Count == 0 ? 1 : Count)];
  f32x16 highest[static_cast<std::size_t>(Maxima == 0 ? 1 : Maxima)] = {};
  lane_mask usable = all_of_lanes();  // lanes in which all squares so far are below the largest float

  SLAMB_ALWAYS_INLINE void add_square(int index, const f32x16& x) { sum[index].add_square(x); }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const f32x16& x) { highest[index] = maximum(highest[index], x); }
  SLAMB_ALWAYS_INLINE void check_finite(const f32x16& x) {
    usable = usable & (x * x < f32x16(std::numeric_limits<float>::max()));
  }

  /// Copies register by register. Compilers keep sums that are copied at once in memory.
  SLAMB_ALWAYS_INLINE void copy_to(tile_sums& to) const {
    for (int k = 0; k < Count; ++k)
      for (std::size_t i = 0; i < std::size(sum[k].part); ++i) to.sum[k].part[i] = sum[k].part[i];
    for (int k = 0; k < Maxima; ++k)
      for (int i = 0; i < native::parts; ++i) to.highest[k].part[i] = highest[k].part[i];
    for (int i = 0; i < native::parts; ++i) to.usable.part[i] = usable.part[i];
  }

  void write(double* results) const {
    for (int i = 0; i < Count; ++i) results[i] = sum[i].total();
    for (int i = 0; i < Maxima; ++i) {
      float lane[lanes];
      highest[i].store(lane);
      results[Count + i] = *std::max_element(lane, lane + lanes);
    }
  }

  bool all_finite() const {
    std::int32_t lane[lanes];
    std::memcpy(lane, usable.part, sizeof(lane));
    return std::all_of(lane, lane + lanes, [](std::int32_t x) { return x != 0; });
  }
};

/// Adds to the sums of a tile only the lanes in `counts`. Checks all lanes.
template <int Count, int Maxima = 0>
struct masked_tile_sums {
  tile_sums<Count, Maxima>& all;
  lane_mask counts;

  SLAMB_ALWAYS_INLINE void add_square(int index, const f32x16& x) {
    all.add_square(index, select(counts, x, f32x16(0.0F)));
  }
  /// Adds the lanes in `others` instead.
  SLAMB_ALWAYS_INLINE void add_square_of(const lane_mask& others, int index, const f32x16& x) {
    all.add_square(index, select(others, x, f32x16(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const f32x16& x) {
    all.take_maximum(index, select(counts, x, f32x16(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void check_finite(const f32x16& x) { all.check_finite(x); }
};

/// The sums of a pass.
template <class Pass>
using sums_of = tile_sums<Pass::sums, maxima_of<Pass>()>;
template <class Pass>
using masked_sums_of = masked_tile_sums<Pass::sums, maxima_of<Pass>()>;

/// Calls `run` with the constants of a tensor. A pass may have several types of them: compilers leave out of the loop what a type
/// does not need.
template <class Pass, class Run>
SLAMB_ALWAYS_INLINE void with_constants(const Pass& pass, std::uint32_t tensor, const Run& run) {
  const auto constants = pass.constants(tensor);
  if constexpr (requires { pass.specialize(constants, run); })
    pass.specialize(constants, run);
  else
    run(constants);
}

/// Runs a pass over `count` elements, all of one tensor, of the Arrays that are made of `from`. Computes its sums in the order of
/// the elements. Works with variables of its own: compilers keep them in registers, because no store through a pointer can
/// change them.
template <class Arrays, class Pass, class Constants, class... From>
[[gnu::noinline]] SLAMB_FLATTEN void run_elements(const Pass& its_pass, const Constants& its_constants,
                                                  std::size_t count, sums_of<Pass>& its_sums, const From&... from) {
  const Pass pass = its_pass;
  const Constants constants = its_constants;
  const Arrays at(from...);
  sums_of<Pass> sums;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    element_of<Pass, f32x16> e;
    at.load(typename Pass::reads(), e, i);
    pass(e, constants, sums);
    at.store(typename Pass::writes(), e, i);
  }
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    masked_sums_of<Pass> rest_sums{sums, mask_of((1U << static_cast<unsigned>(rest)) - 1U)};
    element_of<Pass, f32x16> e;
    at.load(typename Pass::reads(), e, i, rest);
    pass(e, constants, rest_sums);
    at.store(typename Pass::writes(), e, i, rest);
  }
  sums.copy_to(its_sums);
}

/// True if the pass leaves out this tensor.
template <class Pass>
bool leaves_out(const segment& s) {
  return follows_gradient<Pass>() && !s.has_gradient;
}

/// Does what a pass does for a tensor that it leaves out: sums of 0, and an exchange buffer of 0.
template <class Pass, class View>
void leave_out(const View& view, const segment& s, const tile& t, double* results) {
  if (results != nullptr) std::fill(results, results + results_of<Pass>(), 0.0);
  if constexpr (writes_of<Pass>::type::template has<array::exchanged>) {
    float* const first = view.exchanged + (s.first + t.first - view.exchanged_first);
    std::fill(first, first + t.count, 0.0F);
  }
}

/// Runs `pass` over a tile and writes its results to `sums` [results_of<Pass>()]. Returns true if all checked values are finite.
template <class Pass, class View>
bool run_tile(const Pass& pass, const View& view, std::size_t number, double* sums) {
  const tile t = view.tiles[number];
  const segment& s = view.segments[t.segment];
  if (leaves_out<Pass>(s)) {
    leave_out<Pass>(view, s, t, sums);
    return true;
  }
  sums_of<Pass> tile_sum;
  with_constants(pass, t.segment, [&](const auto& constants) {
    run_elements<tile_arrays_of<Pass, View>>(pass, constants, t.count, tile_sum, view, s, t, number);
  });
  tile_sum.write(sums);
  return tile_sum.all_finite();
}

/// The selected elements of a piece of a tile, and the discount of each element. Fits in the first-level cache.
struct chunk_selection {
  static constexpr std::uint32_t size = 2048;  ///< elements

  std::uint16_t bits[size / lanes];
  alignas(64) float discount[size];

  void clear() { std::fill(std::begin(bits), std::end(bits), std::uint16_t{0}); }

  void set_discount(std::uint32_t begin, std::uint32_t past, float value) {
    for (; begin + lanes <= past; begin += lanes) f32x16(value).store(discount + begin);
    for (; begin < past; ++begin) discount[begin] = value;
  }

  void select(std::uint32_t begin, std::uint32_t length) {
    if (length == 1) {
      set_bit(bits, begin);
      return;
    }
    for (const std::uint32_t end = begin + length; begin < end;) {
      const std::uint32_t count = std::min(end - begin, lanes - begin % lanes);
      const std::uint32_t ones = ((1U << count) - 1U) << (begin % lanes);
      bits[begin / lanes] = static_cast<std::uint16_t>(bits[begin / lanes] | ones);
      begin += count;
    }
  }
};

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

/// Sets the bits of selected elements. Sets the staleness discounts of all elements too, if `Discounted` and the selection has
/// ages. All bits must be 0 before.
template <bool Discounted, class Selection>
void fill_selected(const Selection& selection, coordinate c, std::uint32_t count, capability::staleness_discounts table,
                   chunk_selection& chunk) {
  constexpr bool fills_discounts = Discounted && capability::has_age<Selection>;
  if constexpr (capability::has_fill<Selection>)
    if (selection.fill(c, count, table, chunk.bits, fills_discounts ? chunk.discount : nullptr)) return;
  for_each_run(selection, c, count, [&](std::uint64_t begin, std::uint64_t length, std::uint32_t age) {
    const auto first = static_cast<std::uint32_t>(begin - c.index);
    const auto past = first + static_cast<std::uint32_t>(length);
    if (age == 0) chunk.select(first, past - first);
    if constexpr (fills_discounts) {
      chunk.set_discount(first, past, table[age]);
    }
  });
}

/// The number of selected elements in the tile.
template <class Selection>
std::uint64_t count_selected(const Selection& selection, const segment& s, const tile& t) {
  if (s.dense) return t.count;
  coordinate c = coordinate_of(s, t.segment, t.first);
  const std::uint64_t end = t.first + t.count;
  if constexpr (capability::has_selected_before<Selection>) {
    const std::uint64_t before = selection.selected_before(c);
    c.index = end;
    return selection.selected_before(c) - before;
  } else {
    std::uint64_t selected = 0;
    for (chunk_selection chunk; c.index != end;) {
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk_selection::size, end - c.index));
      chunk.clear();
      fill_selected<false>(selection, c, count, {}, chunk);
      for (const std::uint16_t bits : chunk.bits) selected += count_of(bits);
      c.index += count;
    }
    return selected;
  }
}

/// Fills `chunk` for `count` elements from `c` on. If the selection has no ages, they are stored in `age` [count], and each call
/// with `Discounted` and `Ageing` updates them.
template <bool Discounted, bool Ageing, class Selection>
void fill_chunk(const Selection& selection, const segment& s, coordinate c, std::uint32_t count,
                const payload_view& payload, stored_age_t<Selection>* age, chunk_selection& chunk) {
  chunk.clear();
  if (s.dense) {
    chunk.select(0, count);
    if constexpr (Discounted) chunk.set_discount(0, count, 1.0F);
    return;
  }
  fill_selected<Discounted>(selection, c, count, payload.discount, chunk);
  if constexpr (Discounted && !capability::has_age<Selection>) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool selected = ((chunk.bits[i / lanes] >> (i % lanes)) & 1U) != 0;
      const bool oldest = age[i] == std::numeric_limits<stored_age_t<Selection>>::max();
      stored_age_t<Selection> now = age[i];
      if (!oldest || selected) now = static_cast<stored_age_t<Selection>>(selected ? 0U : now + 1U);
      if constexpr (Ageing) age[i] = now;
      chunk.discount[i] = payload.discount[static_cast<std::uint32_t>(now)];
    }
  }
}

/// Runs `pass` over a tile's elements in the payload planes, and adds its sums to `sums` [Pass::sums].
template <class Pass>
void run_packed_tile(const Pass& pass, const model_view& view, const payload_view& payload, std::size_t tile_number,
                     double* sums) {
  static_assert(Pass::writes::count == 0,
                "slamb: a pass over the payload must write no arrays; it can only compute sums");
  const std::uint64_t first = payload.tile_offsets[tile_number];
  const std::uint64_t count = payload.tile_offsets[tile_number + 1] - first;
  tile_sums<Pass::sums> tile_sum;
  run_elements<tile_arrays<typename Pass::reads>>(pass, pass.constants(view.tiles[tile_number].segment), count,
                                                  tile_sum, payload.plane, first);
  for (int i = 0; i < Pass::sums; ++i) sums[i] += tile_sum.sum[i].total();
}

/// The state of a sparse pass over one tile.
template <class Pass, class View, class Constants>
struct selected_lane_runner {
  const Pass& pass;
  Constants constants;
  tile_arrays_of<Pass, View> at;
  payload_view payload;
  std::uint64_t cursor;  // the next element of the payload
  tile_sums<Pass::sums>& sums;

  // Runs the pass over sixteen elements from i on, or fewer: Count… is empty, or their number. `active` has the bits of elements
  // that exist.
  template <class... Count>
  SLAMB_ALWAYS_INLINE void run(std::size_t i, std::uint32_t bits, std::uint32_t active, const float* discount,
                               Count... count) {
    masked_tile_sums<Pass::sums> unsent{sums, mask_of(~bits & active)};
    selected_lanes<f32x16, lane_mask> lane{mask_of(bits), {}};
    if constexpr (Pass::needs_discount) lane.discount = f32x16::load(discount);
    element_of<Pass, f32x16> e;
    at.load(typename Pass::reads(), e, i, count...);
    if constexpr (Pass::receives) e.exchanged = unpack(bits, payload.plane[0] + cursor);
    if constexpr (requires { Pass::receives_compression_error; })
      e.compression_error = payload.plane[1] == nullptr ? f32x16(0.0F) : unpack(bits, payload.plane[1] + cursor);
    pass(e, lane, constants, unsent);
    pack_into_planes(typename Pass::packs(), bits, e);
    at.store(typename Pass::writes(), e, i, count...);
    cursor += count_of(bits);
  }

 private:
  template <class... Arrays, class Element>
  SLAMB_ALWAYS_INLINE void pack_into_planes(arrays<Arrays...> /*packs*/, [[maybe_unused]] std::uint32_t bits,
                                            [[maybe_unused]] const Element& e) {
    [[maybe_unused]] std::size_t plane = 0;
    (pack(bits, value_of<Arrays, f32x16>(e), payload.plane[plane++] + cursor), ...);
  }
};

/// Runs a sparse pass over a tile and writes its sums to `sums` [Pass::sums]. Returns true if all checked values are finite.
template <class Pass, class View, class Selection>
SLAMB_FLATTEN bool run_selected_tile(const Pass& pass, const View& view, const payload_view& payload,
                                     const Selection& selection, std::size_t tile_number, double* sums) {
  const tile t = view.tiles[tile_number];
  const segment& s = view.segments[t.segment];
  if (leaves_out<Pass>(s)) {
    leave_out<Pass>(view, s, t, sums);
    for (std::size_t plane = 0; plane < Pass::packs::count; ++plane)
      std::fill(payload.plane[plane] + payload.tile_offsets[tile_number],
                payload.plane[plane] + payload.tile_offsets[tile_number + 1], 0.0F);
    return true;
  }
  constexpr bool needs_ages = Pass::needs_discount && !capability::has_age<Selection>;
  tile_sums<Pass::sums> tile_sum;
  selected_lane_runner<Pass, View, decltype(pass.constants(0))> runner{
      pass,    pass.constants(t.segment),         tile_arrays_of<Pass, View>(view, s, t, tile_number),
      payload, payload.tile_offsets[tile_number], tile_sum};
  chunk_selection chunk;
  for (std::uint32_t first = 0; first < t.count; first += chunk_selection::size) {
    const std::uint32_t count = std::min(chunk_selection::size, t.count - first);
    stored_age_t<Selection>* age = nullptr;
    if constexpr (needs_ages) age = static_cast<stored_age_t<Selection>*>(payload.age) + s.state + t.first + first;
    fill_chunk<Pass::needs_discount, Pass::receives>(selection, s, coordinate_of(s, t.segment, t.first + first), count,
                                                     payload, age, chunk);
    std::uint32_t i = 0;
    for (; i + lanes <= count; i += lanes) runner.run(first + i, chunk.bits[i / lanes], all_lanes, chunk.discount + i);
    if (const std::uint32_t rest = count - i; rest > 0)
      runner.run(first + i, chunk.bits[i / lanes], (1U << rest) - 1U, chunk.discount + i, static_cast<int>(rest));
  }
  for (int i = 0; i < Pass::sums; ++i) sums[i] = tile_sum.sum[i].total();
  return tile_sum.all_finite();
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
