// The elements that the host works on at once: sixteen, or fewer at the end of a tile. By these functions kernels read and write
// arrays at a position: detail/kernel/kernel.hpp.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/backend/host/detail/storage.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/half.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Elements i … i + 15 of a tile.
struct whole_at {
  using real = f32x16;
  using word = u32x16;
  using mask = lane_mask;

  std::size_t i;

  static constexpr bool is_whole = true;
  whole_at from(std::size_t first) const noexcept { return {i - first}; }
  whole_at moved(std::size_t by) const noexcept { return {i + by}; }
  static constexpr std::uint32_t existing() noexcept { return all_lanes; }
  template <class Body>
  static SLAMB_ALWAYS_INLINE auto counted(const Body& body) {
    return body();
  }
};

/// Elements i … i + count − 1. The other lanes are read as 0, and not written.
struct rest_at {
  using real = f32x16;
  using word = u32x16;
  using mask = lane_mask;

  std::size_t i;
  int count;

  static constexpr bool is_whole = false;
  rest_at from(std::size_t first) const noexcept { return {i - first, count}; }
  rest_at moved(std::size_t by) const noexcept { return {i + by, count}; }
  std::uint32_t existing() const noexcept { return (1U << static_cast<unsigned>(count)) - 1U; }  ///< bits of the lanes
  template <class Body>
  SLAMB_ALWAYS_INLINE auto counted(const Body& body) const {
    return body(count);
  }
};

template <class At>
concept position = std::same_as<At, whole_at> || std::same_as<At, rest_at>;

// Templates, because nvcc compiles every other function, and takes no vectors in functions that are for the device too. Arrays
// begin with the tile.

template <position At>
SLAMB_ALWAYS_INLINE f32x16 load(const float* array, At at) {
  return at.counted([&](auto... count) { return f32x16::load(array + at.i, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE void store(const f32x16& x, float* array, At at) {
  at.counted([&](auto... count) { x.store(array + at.i, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE f32x16 load_bfloat16(const std::uint16_t* array, At at) {
  const auto* const from = reinterpret_cast<const bfloat16*>(array) + at.i;
  return at.counted([&](auto... count) { return load_floats(from, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE f32x16 load_half(const std::uint16_t* array, At at) {
  const auto* const from = reinterpret_cast<const half*>(array) + at.i;
  return at.counted([&](auto... count) { return load_floats(from, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE void store_words(const u32x16& words, std::uint16_t* array, At at) {
  auto* const to = reinterpret_cast<bfloat16*>(array) + at.i;
  at.counted([&](auto... count) { store_bits(words, to, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE u32x16 load_words(const std::uint8_t* array, At at) {
  return at.counted([&](auto... count) { return load_bytes(array + at.i, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE u32x16 load_words(const std::uint16_t* array, At at) {
  const auto* const from = reinterpret_cast<const bfloat16*>(array) + at.i;
  if constexpr (At::is_whole) {
    return load_bits(from);
  } else {
    bfloat16 all[lanes] = {};
    for (int lane = 0; lane < at.count; ++lane) all[lane] = from[lane];
    return load_bits(all);
  }
}
template <position At>
SLAMB_ALWAYS_INLINE u32x16 load_words(const std::uint32_t* array, At at) {
  if constexpr (At::is_whole) {
    return u32x16::load(array + at.i);
  } else {
    std::uint32_t all[lanes] = {};
    std::copy_n(array + at.i, at.count, all);
    return u32x16::load(all);
  }
}
template <position At>
SLAMB_ALWAYS_INLINE void store_words(const u32x16& words, std::uint32_t* array, At at) {
  if constexpr (At::is_whole) {
    words.store(array + at.i);
  } else {
    std::uint32_t all[lanes];
    words.store(all);
    std::copy_n(all, at.count, array + at.i);
  }
}
template <position At>
SLAMB_ALWAYS_INLINE void store_words(const u32x16& words, std::uint8_t* array, At at) {
  if constexpr (At::is_whole) {
    store_codes<8>(words, reinterpret_cast<std::byte*>(array + at.i));
  } else {
    std::byte all[lanes];
    store_codes<8>(words, all);
    std::memcpy(array + at.i, all, static_cast<std::size_t>(at.count));
  }
}

// To numbers of sixteen bits: to nearest, or by chance.
template <position At>
SLAMB_ALWAYS_INLINE void store_bfloat16(const f32x16& x, const u32x16& draw, std::uint16_t* array, At at) {
  store_words(quick_stochastic_bfloat16_bits(x, draw), array, at);
}
template <position At>
SLAMB_ALWAYS_INLINE void store_typed(const f32x16& x, std::uint16_t* array, element_type type, At at) {
  at.counted([&](auto... count) { store_nearest(x, array, type, at.i, count...); });
}
template <position At>
SLAMB_ALWAYS_INLINE void store_typed(const f32x16& x, const u32x16& draw, std::uint16_t* array, element_type type,
                                     At at) {
  at.counted([&](auto... count) { store_by_chance(x, draw, array, type, at.i, count...); });
}

// Values in the memory of a team.
template <position At>
SLAMB_ALWAYS_INLINE f32x16 load_together(const float* array, At at) {
  return load(array, at);
}
template <position At>
SLAMB_ALWAYS_INLINE void store_together(const f32x16& x, float* array, At at) {
  store(x, array, at);
}

// Codes, which are padded to sixteen.
template <int Bits, position At>
SLAMB_ALWAYS_INLINE u32x16 load_codes(const std::byte* codes, At at) {
  return load_codes<Bits>(codes + at.i * Bits / 8);
}
template <int Bits, position At>
SLAMB_ALWAYS_INLINE void store_codes(const u32x16& words, std::byte* codes, At at) {
  store_codes<Bits>(words, codes + at.i * Bits / 8);
}

/// The bits of these elements in an array of sixteen a word.
template <position At>
SLAMB_ALWAYS_INLINE std::uint32_t bits_at(const std::uint16_t* bits, At at) {
  return bits[at.i / lanes] & at.existing();
}
template <position At>
SLAMB_ALWAYS_INLINE lane_mask mask_of(std::uint32_t bits, At /*at*/) {
  return mask_of(bits);
}
/// x, with 0 in lanes without an element.
template <position At>
SLAMB_ALWAYS_INLINE f32x16 existing(const f32x16& x, At at) {
  if constexpr (At::is_whole)
    return x;
  else
    return select(mask_of(at.existing()), x, f32x16(0.0F));
}

inline constexpr float numbers_of_lanes[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
/// first + i, first + i + 1, …
template <position At>
SLAMB_ALWAYS_INLINE f32x16 numbers_at(std::uint32_t first, At at) {
  return f32x16(static_cast<float>(first + at.i)) + f32x16::load(numbers_of_lanes);
}

// The element functions of passes and quantizers, on all lanes.
template <class Pass, class List, class... Arguments>
SLAMB_ALWAYS_INLINE void apply(const Pass& pass, element<f32x16, List>& e, Arguments&... arguments) {
  pass(e, arguments...);
}
template <class Pass, class List, class Constants, class Checks>
SLAMB_ALWAYS_INLINE f32x16 signal_of(const Pass& pass, const element<f32x16, List>& e, const Constants& constants,
                                     Checks& checks) {
  return pass.signal(e, constants, checks);
}
template <class Quantizer>
SLAMB_ALWAYS_INLINE u32x16 encoded(const Quantizer& quantizer, const f32x16& x, float scale, const f32x16& uniform) {
  return quantizer.encode(x, f32x16(scale), uniform);
}

/// On an emulated device, hides the values of an element that a pass does not read.
template <class Real, class List>
SLAMB_ALWAYS_INLINE void hide(element<Real, List>& /*e*/) {}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
