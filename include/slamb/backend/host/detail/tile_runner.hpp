// Runs a pass over one tile, sixteen elements at a time. A sparse pass also works on the tile's part of the payload.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/backend/host/detail/storage.hpp"
#include "slamb/backend/host/detail/uniform.hpp"
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
  floats highest[static_cast<std::size_t>(Maxima == 0 ? 1 : Maxima)] = {};
  lane_mask usable = all_of_lanes();  // lanes in which all squares so far are below the largest float

  SLAMB_ALWAYS_INLINE void add_square(int index, const floats& x) { sum[index].add_square(x); }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const floats& x) { highest[index] = maximum(highest[index], x); }
  SLAMB_ALWAYS_INLINE void check_finite(const floats& x) {
    usable = usable & (x * x < floats(std::numeric_limits<float>::max()));
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

  SLAMB_ALWAYS_INLINE void add_square(int index, const floats& x) {
    all.add_square(index, select(counts, x, floats(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const floats& x) {
    all.take_maximum(index, select(counts, x, floats(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void check_finite(const floats& x) { all.check_finite(x); }
};

/// The sums of a pass.
template <class Pass>
using sums_of = tile_sums<Pass::sums, maxima_of<Pass>()>;
template <class Pass>
using masked_sums_of = masked_tile_sums<Pass::sums, maxima_of<Pass>()>;

/// The random numbers of a tile, by which numbers are rounded. Sixteen at a time: for elements in order, or once more for elements
/// of the block of `code_block` that has just ended.
template <class Precision>
struct tile_draws {
  tile_draws() = default;
  template <class View>
  tile_draws(const View& /*view*/, const tile& /*t*/) {}
};
template <class Precision>
requires(has_draws<Precision>) struct tile_draws<Precision> {
  template <class View>
  tile_draws(const View& view, const tile& t) : draws_(view.draws), tensor_(t.segment), first_(t.first) {}

  /// Of elements i … i + 15 of the tile; i is a multiple of 16.
  SLAMB_ALWAYS_INLINE words at(std::size_t i) {
    if (i == drawn_) draw();
    return load_codes<16>(bits_[i / size % pieces] + 2 * (i % size + (first_ & 7U)));
  }

 private:
  static constexpr std::size_t size = lanes * 8;  // elements of sixteen counters
  static constexpr std::size_t pieces = has_blocks<Precision> ? code_block / size : 1;

  void draw() {
    std::byte* const bits = bits_[drawn_ / size % pieces];
    const std::uint64_t stream = draws_.stream(tensor_), counter = draws_.counter(first_ + drawn_);
    random_bytes(draws_.seed, stream, counter, bits);
    if ((first_ & 7U) != 0) random_bytes(draws_.seed, stream, counter + lanes, bits + 2 * size);
    drawn_ += size;
  }

  rounding_draws draws_;
  std::uint32_t tensor_;
  std::uint64_t first_;
  std::size_t drawn_ = 0;  // elements so far
  alignas(64) std::byte bits_[pieces][4 * size];
};

/// Numbers that wait for the end of their block.
template <class Precision, bool InBlocks = has_blocks<Precision>>
struct waiting_blocks {
  waiting_blocks() = default;
  explicit waiting_blocks(const tile& /*t*/) {}
};
template <class Precision>
struct waiting_blocks<Precision, true> {
  waiting_blocks() = default;
  explicit waiting_blocks(const tile& t) : count(t.count) {}

  std::uint32_t count = 0;  // elements of the tile
  alignas(64) float momentum[code_block];
  alignas(64) float variance[code_block];

  float* of(const eight_bit_numbers<true>& /*array*/) { return momentum; }
  float* of(const eight_bit_numbers<false>& /*array*/) { return variance; }
};

// The draw of m or v from an element's. Templates, as in storage.hpp.
template <class Words>
SLAMB_ALWAYS_INLINE Words draw_for(const bfloat16_numbers& /*array*/, const Words& r) {
  return draw_of_momentum(r);
}
template <bool Signed, class Words>
SLAMB_ALWAYS_INLINE Words draw_for(const eight_bit_numbers<Signed>& /*array*/, const Words& r) {
  if constexpr (Signed)
    return draw_of_momentum(r);
  else
    return draw_of_variance(r);
}

/// Writes a block of `count` numbers that begins at element `first` of the tile, with its scale. `value` has a whole block.
template <bool Signed, class Draws>
[[gnu::noinline]] void store_block(const eight_bit_numbers<Signed>& array, std::uint32_t first, std::uint32_t count,
                                   float* value, Draws& draws) {
  using map = dynamic_map<Signed>;
  for (std::uint32_t i = count; i % lanes != 0; ++i) value[i] = 0.0F;
  words largest(0U);
  for (std::uint32_t i = 0; i < count; i += lanes) {
    const words magnitude = as_word(floats::load(value + i)) & words(0x7FFFFFFFU);
    largest = select(largest < magnitude, magnitude, largest);
  }
  std::uint32_t of_lane[lanes];
  largest.store(of_lane);
  const float scale = block_scale<Signed>(*std::max_element(of_lane, of_lane + lanes));
  array.scales[first / code_block] = scale;
  std::uint8_t* const codes = array.codes + first;
  if (!(scale <= std::numeric_limits<float>::max())) {
    std::fill(codes, codes + count, std::uint8_t{1});
    return;
  }
  const floats inverse(per_scale(scale));
  alignas(16) std::byte all[code_block];
  for (std::uint32_t i = 0; i < count; i += lanes)
    store_codes<8>(map::code_of(floats::load(value + i), inverse, draw_for(array, draws.at(first + i))),
                   count - i < lanes ? all + i : reinterpret_cast<std::byte*>(codes) + i);
  if (const std::uint32_t whole = count - count % lanes; whole < count)
    std::memcpy(codes + whole, all + whole, count - whole);
}

/// Loads and stores the arrays of one tile, sixteen elements at a time.
template <class List, class Precision = single_precision>
struct tile_arrays : tile_pointers<List, Precision> {
  /// @param number  of the tile `t`
  template <class View>
  tile_arrays(const View& view, const segment& s, const tile& t, std::size_t number)
      : tile_pointers<List, Precision>(view, s, t, number), draws_(view, t), waiting_(t) {}
  /// The arrays of a payload, which are floats.
  template <std::size_t Planes>
  tile_arrays(float* const (&planes)[Planes], std::uint64_t first) : tile_pointers<List, Precision>(planes, first) {}

  // Where… is empty, or the number of lanes in use.
  template <class Element, class... Arrays, class... Where>
  SLAMB_ALWAYS_INLINE void load(arrays<Arrays...> /*some*/, [[maybe_unused]] Element& e, [[maybe_unused]] std::size_t i,
                                [[maybe_unused]] Where... where) const {
    (load_one<Arrays>(e, i, where...), ...);
  }
  /// Calls for one tile are in the order of its elements.
  template <class Element, class... Arrays, class... Where>
  SLAMB_ALWAYS_INLINE void store(arrays<Arrays...> /*some*/, [[maybe_unused]] const Element& e,
                                 [[maybe_unused]] std::size_t i, [[maybe_unused]] Where... where) const {
    static_assert((!std::is_same_v<Arrays, array::gradient> && ...),
                  "slamb: a pass must not write gradients, because they belong to the user");
    static_assert((!std::is_void_v<typename Arrays::stored> && ...),
                  "slamb: a pass cannot write positions, because they are not stored in memory");
    (store_one(value_of<Arrays, floats>(e), value_of<Arrays, stored_pointer_t<Arrays, Precision>>(*this), i, where...),
     ...);
  }

 private:
  static constexpr float numbers_of_lanes[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  template <class Array, class Element, class... Where>
  SLAMB_ALWAYS_INLINE void load_one(Element& e, std::size_t i, Where... where) const {
    if constexpr (std::is_same_v<Array, array::position>)
      e.position = floats(static_cast<float>(this->first_position + i)) + floats::load(numbers_of_lanes);
    else
      value_of<Array, floats>(e) = loaded(value_of<Array, stored_pointer_t<Array, Precision>>(*this), i, where...);
  }

  template <class... Where>
  static SLAMB_ALWAYS_INLINE floats loaded(const float* array, std::size_t i, Where... where) {
    return floats::load(array + i, where...);
  }
  template <class... Where>
  static SLAMB_ALWAYS_INLINE floats loaded(const scaled_floats& array, std::size_t i, Where... where) {
    return floats::load(array.address + i, where...) * floats(array.scale);
  }
  template <class... Where>
  static SLAMB_ALWAYS_INLINE floats loaded(const scaled_numbers& array, std::size_t i, Where... where) {
    return load_typed(array, i, where...) * floats(array.scale);
  }
  template <typed_array Typed, class... Where>
  static SLAMB_ALWAYS_INLINE floats loaded(const Typed& array, std::size_t i, Where... where) {
    return load_typed(array, i, where...);
  }
  template <class... Where>
  static SLAMB_ALWAYS_INLINE floats loaded(const bfloat16_numbers& array, std::size_t i, Where... where) {
    return load_floats(reinterpret_cast<const bfloat16*>(array.bits) + i, where...);
  }
  template <bool Signed, class... Where>
  static SLAMB_ALWAYS_INLINE floats loaded(const eight_bit_numbers<Signed>& array, std::size_t i, Where... where) {
    return dynamic_map<Signed>::template number_of<floats>(load_bytes(array.codes + i, where...)) *
           floats(array.scales[i / code_block]);
  }

  template <class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const floats& x, float* array, std::size_t i, Where... where) const {
    x.store(array + i, where...);
  }
  template <class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const floats& x, const typed_parameter& array, std::size_t i,
                                     Where... where) const {
    if (array.type == element_type::float32) {
      x.store(static_cast<float*>(array.address) + i, where...);
      if (array.rounded != nullptr) store_nearest(x, array.rounded, array.rounded_type, i, where...);
    } else if constexpr (Precision::rounds_by_chance) {
      store_by_chance(x, draws_.at(i), array.address, array.type, i, where...);
    }
  }
  template <class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const floats& x, const bfloat16_numbers& array, std::size_t i,
                                     Where... where) const {
    store_by_chance(x, draw_for(array, draws_.at(i)), array.bits, element_type::bfloat16, i, where...);
  }
  // Waits for the end of the block.
  template <bool Signed, class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const floats& x, const eight_bit_numbers<Signed>& array, std::size_t i,
                                     Where... /*where*/) const {
    float* const block = waiting_.of(array);
    x.store(block + i % code_block);
    const auto end = static_cast<std::uint32_t>(i) + lanes;
    if (end % code_block == 0 || end >= waiting_.count) {
      const std::uint32_t past = std::min(end, waiting_.count), first = (past - 1) / code_block * code_block;
      store_block(array, first, past - first, block, draws_);
    }
  }

  [[no_unique_address]] mutable tile_draws<Precision> draws_;
  [[no_unique_address]] mutable waiting_blocks<Precision> waiting_;
};

/// The arrays that a pass accesses in a view.
template <class Pass, class View>
using tile_arrays_of = tile_arrays<accessed_by<Pass>, typename View::precision>;

/// Runs `pass` over `count` elements of `at`, all of one tensor, and adds its sums in the order of the elements.
template <class Pass, class Constants, class Arrays>
SLAMB_FLATTEN void run_elements(const Pass& pass, const Constants& constants, const Arrays& at, std::size_t count,
                                sums_of<Pass>& sums) {
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    element_of<Pass, floats> e;
    at.load(typename Pass::reads(), e, i);
    pass(e, constants, sums);
    at.store(typename Pass::writes(), e, i);
  }
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    masked_sums_of<Pass> rest_sums{sums, mask_of((1U << static_cast<unsigned>(rest)) - 1U)};
    element_of<Pass, floats> e;
    at.load(typename Pass::reads(), e, i, rest);
    pass(e, constants, rest_sums);
    at.store(typename Pass::writes(), e, i, rest);
  }
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
  const tile& t = view.tiles[number];
  if (leaves_out<Pass>(view.segments[t.segment])) {
    leave_out<Pass>(view, view.segments[t.segment], t, sums);
    return true;
  }
  sums_of<Pass> tile_sum;
  run_elements(pass, pass.constants(t.segment), tile_arrays_of<Pass, View>(view, view.segments[t.segment], t, number),
               t.count, tile_sum);
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
    for (; begin + lanes <= past; begin += lanes) floats(value).store(discount + begin);
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
/// with `Discounted` updates them.
template <bool Discounted, class Selection>
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
      if (!oldest || selected) age[i] = static_cast<stored_age_t<Selection>>(selected ? 0U : age[i] + 1U);
      chunk.discount[i] = payload.discount[static_cast<std::uint32_t>(age[i])];
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
  const tile_arrays<typename Pass::reads> planes(payload.plane, first);
  tile_sums<Pass::sums> tile_sum;
  run_elements(pass, pass.constants(view.tiles[tile_number].segment), planes, count, tile_sum);
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
    selected_lanes<floats, lane_mask> lane{mask_of(bits), {}};
    if constexpr (Pass::needs_discount) lane.discount = floats::load(discount);
    element_of<Pass, floats> e;
    at.load(typename Pass::reads(), e, i, count...);
    if constexpr (Pass::receives) e.exchanged = unpack(bits, payload.plane[0] + cursor);
    if constexpr (requires { Pass::receives_compression_error; })
      e.compression_error = payload.plane[1] == nullptr ? floats(0.0F) : unpack(bits, payload.plane[1] + cursor);
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
    (pack(bits, value_of<Arrays, floats>(e), payload.plane[plane++] + cursor), ...);
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
    fill_chunk<Pass::needs_discount>(selection, s, coordinate_of(s, t.segment, t.first + first), count, payload, age,
                                     chunk);
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
