// Loads and stores the arrays of a tile as `f32x16`, in the types in which they are stored.
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
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

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
  SLAMB_ALWAYS_INLINE u32x16 at(std::size_t i) {
    if (i == drawn_) draw();
    return load_codes<16>(bits_ + 2 * (i % size + first_ % rounding_draws::elements_of_counter));
  }

 private:
  static constexpr std::size_t size = lanes * rounding_draws::elements_of_counter;  // elements of sixteen counters
  static_assert(size % code_block == 0);  // all draws of a block are there when it ends

  void draw() {
    const std::uint64_t stream = draws_.stream(tensor_), counter = draws_.counter(first_ + drawn_);
    bits_for_rounding(draws_.seed, stream, counter, bits_);
    if (first_ % rounding_draws::elements_of_counter != 0)
      bits_for_rounding(draws_.seed, stream, counter + lanes, bits_ + 2 * size);
    drawn_ += size;
  }

  rounding_draws draws_;
  std::uint32_t tensor_;
  std::uint64_t first_;
  std::size_t drawn_ = 0;  // elements so far
  alignas(64) std::byte bits_[4 * size];
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
  u32x16 largest(0U);
  for (std::uint32_t i = 0; i < count; i += lanes) {
    const u32x16 magnitude = as_word(f32x16::load(value + i)) & u32x16(0x7FFFFFFFU);
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
  const f32x16 inverse(per_scale(scale));
  alignas(16) std::byte all[code_block];
  for (std::uint32_t i = 0; i < count; i += lanes)
    store_codes<8>(map::code_of(f32x16::load(value + i), inverse, draw_for(array, draws.at(first + i))),
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
    (store_one(value_of<Arrays, f32x16>(e), value_of<Arrays, stored_pointer_t<Arrays, Precision>>(*this), i, where...),
     ...);
  }

 private:
  static constexpr float numbers_of_lanes[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  template <class Array, class Element, class... Where>
  SLAMB_ALWAYS_INLINE void load_one(Element& e, std::size_t i, Where... where) const {
    if constexpr (std::is_same_v<Array, array::position>)
      e.position = f32x16(static_cast<float>(this->first_position + i)) + f32x16::load(numbers_of_lanes);
    else
      value_of<Array, f32x16>(e) = loaded(value_of<Array, stored_pointer_t<Array, Precision>>(*this), i, where...);
  }

  template <class... Where>
  static SLAMB_ALWAYS_INLINE f32x16 loaded(const float* array, std::size_t i, Where... where) {
    return f32x16::load(array + i, where...);
  }
  template <class... Where>
  static SLAMB_ALWAYS_INLINE f32x16 loaded(const scaled_floats& array, std::size_t i, Where... where) {
    return f32x16::load(array.address + i, where...) * f32x16(array.scale);
  }
  template <class... Where>
  static SLAMB_ALWAYS_INLINE f32x16 loaded(const scaled_numbers& array, std::size_t i, Where... where) {
    return load_typed(array, i, where...) * f32x16(array.scale);
  }
  template <typed_array Typed, class... Where>
  static SLAMB_ALWAYS_INLINE f32x16 loaded(const Typed& array, std::size_t i, Where... where) {
    return load_typed(array, i, where...);
  }
  template <class... Where>
  static SLAMB_ALWAYS_INLINE f32x16 loaded(const bfloat16_numbers& array, std::size_t i, Where... where) {
    return load_floats(reinterpret_cast<const bfloat16*>(array.bits) + i, where...);
  }
  template <bool Signed, class... Where>
  static SLAMB_ALWAYS_INLINE f32x16 loaded(const eight_bit_numbers<Signed>& array, std::size_t i, Where... where) {
    return dynamic_map<Signed>::template number_of<f32x16>(load_bytes(array.codes + i, where...)) *
           f32x16(array.scales[i / code_block]);
  }

  template <class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const f32x16& x, float* array, std::size_t i, Where... where) const {
    x.store(array + i, where...);
  }
  template <class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const f32x16& x, const typed_parameter& array, std::size_t i,
                                     Where... where) const {
    if (array.type == element_type::float32) {
      x.store(static_cast<float*>(array.address) + i, where...);
      if (array.rounded != nullptr) store_nearest(x, array.rounded, array.rounded_type, i, where...);
    } else if constexpr (Precision::rounds_by_chance) {
      store_by_chance(x, draws_.at(i), array.address, array.type, i, where...);
    }
  }
  template <class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const f32x16& x, const bfloat16_numbers& array, std::size_t i,
                                     Where... where) const {
    store_by_chance(x, draw_for(array, draws_.at(i)), array.bits, element_type::bfloat16, i, where...);
  }
  // Waits for the end of the block.
  template <bool Signed, class... Where>
  SLAMB_ALWAYS_INLINE void store_one(const f32x16& x, const eight_bit_numbers<Signed>& array, std::size_t i,
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

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
