// The offsets of a tile's codes, scales and errors in a quantized exchange, and the mask of its active elements.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/backend/host/detail/storage.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// An array of errors: float, bfloat16, or none.
template <class Storage>
struct error_array {
  static constexpr bool exists = true;
  Storage* first = nullptr;

  error_array(void* array, std::uint64_t offset) : first(static_cast<Storage*>(array) + offset) {}

  // Count… is empty, or the number of lanes in use.
  template <class... Count>
  SLAMB_ALWAYS_INLINE f32x16 load(std::size_t i, Count... count) const {
    return load_floats(first + i, count...);
  }
  template <class... Count>
  SLAMB_ALWAYS_INLINE void store(const f32x16& x, std::size_t i, Count... count) const {
    store_floats(x, first + i, count...);
  }
  // A bound of x after it is rounded for storage. The check for a finite square uses it, because an error that was rounded up to
  // a value with an infinite square could never be sent.
  static SLAMB_ALWAYS_INLINE f32x16 bound(const f32x16& x) {
    return std::is_same_v<Storage, float> ? x : x * f32x16(1.0F + 0x1p-7F);
  }
};
template <>
struct error_array<no_storage> {
  static constexpr bool exists = false;
  error_array(void* /*array*/, std::uint64_t /*offset*/) {}
  static SLAMB_ALWAYS_INLINE const f32x16& bound(const f32x16& x) { return x; }
};

inline float load_scale(const std::byte* message, std::uint64_t index) {
  float scale = 0.0F;
  std::memcpy(&scale, message + index * sizeof(float), sizeof(float));
  return scale;
}
inline void store_scale(std::byte* message, std::uint64_t index, float scale) {
  std::memcpy(message + index * sizeof(float), &scale, sizeof(float));
}

/// The scale as a quantizer sends it: a float, or a byte. `write_scale` returns the scale that will be read.
template <class Quantizer>
float read_scale(const Quantizer& quantizer, const std::byte* message, std::uint64_t index) {
  if constexpr (capability::sends_scales_in_bytes<Quantizer>)
    return quantizer.decode_scale(std::to_integer<std::uint8_t>(message[index]));
  else
    return load_scale(message, index);
}
template <class Quantizer>
float write_scale(const Quantizer& quantizer, std::byte* message, std::uint64_t index, float scale) {
  if constexpr (capability::sends_scales_in_bytes<Quantizer>) {
    const std::uint8_t byte = quantizer.encode_scale(scale);
    message[index] = static_cast<std::byte>(byte);
    return quantizer.decode_scale(byte);
  } else {
    store_scale(message, index, scale);
    return scale;
  }
}

/// The codes and scales of a tile in a message.
template <class Quantizer, class Byte>
struct tile_codes {
  static constexpr int bits = Quantizer::bits_per_element;
  static constexpr bool has_blocks = Quantizer::scale != segment_scale::none && requires(const Quantizer& q) {
    q.block;
  };

  Byte* message;
  Byte* codes;
  std::uint64_t scale;

  tile_codes(Byte* of_owner, const wire_view& wire, const wire_tile& t) : tile_codes(of_owner, wire.codes_at, t) {}
  tile_codes(Byte* of_owner, std::uint64_t codes_at, const wire_tile& t)
      : message(of_owner), codes(of_owner + codes_at + t.code * bits / 8), scale(t.scale) {}

  // The scale of element i: its block's, or the shared one, or 1 if the quantizer has no scale.
  f32x16 scale_at(const Quantizer& quantizer, std::size_t i) const {
    if constexpr (Quantizer::scale == segment_scale::none) return f32x16(1.0F);
    if constexpr (has_blocks) {
      const auto block = static_cast<std::uint32_t>(quantizer.block);  // a power of two: a shift instead of a division
      return f32x16(read_scale(quantizer, message, scale + (i >> std::countr_zero(block))));
    }
    return f32x16(load_scale(message, scale));
  }
  SLAMB_ALWAYS_INLINE f32x16 decode(const Quantizer& quantizer, std::size_t i, const f32x16& its_scale) const {
    return quantizer.template decode<f32x16>(load_codes<bits>(codes + i * bits / 8), its_scale);
  }
  SLAMB_ALWAYS_INLINE void store(const u32x16& code, std::size_t i) const {
    store_codes<bits>(code, codes + i * bits / 8);
  }
};

/// The mask of a tile's active elements.
struct tile_active {
  const std::uint16_t* bits = nullptr;          // null: all
  bool announces = false;                       // inactive elements announce signals
  const std::uint16_t* may_announce = nullptr;  // null: all that are inactive

  tile_active(const wire_view& wire, const wire_tile& t)
      : bits(bits_of(wire.active, wire, t)),
        announces(wire.announces && bits != nullptr),
        may_announce(bits_of(wire.may_announce, wire, t)) {}

  SLAMB_ALWAYS_INLINE std::uint32_t at(std::uint32_t i, std::uint32_t count) const {
    const std::uint32_t existing = count >= lanes ? all_lanes : (1U << count) - 1U;
    return bits == nullptr ? existing : existing & bits[i / lanes];
  }
  // x, with 0 in inactive lanes. Count… is empty, or the number of lanes in use.
  template <class... Count>
  SLAMB_ALWAYS_INLINE f32x16 keep(const f32x16& x, std::uint32_t i, Count... count) const {
    if constexpr (sizeof...(count) == 0)
      return bits == nullptr ? x : select(mask_of(bits[i / lanes]), x, f32x16(0.0F));
    else
      return select(mask_of(at(i, static_cast<std::uint32_t>(count)...)), x, f32x16(0.0F));
  }
  // The bits of inactive lanes that announce signals.
  SLAMB_ALWAYS_INLINE std::uint32_t announcing(std::uint32_t i, std::uint32_t count = lanes) const {
    if (!announces) return 0;
    const std::uint32_t existing = count >= lanes ? all_lanes : (1U << count) - 1U;
    return existing & ~std::uint32_t{bits[i / lanes]} & (may_announce == nullptr ? all_lanes : may_announce[i / lanes]);
  }
  // As keep(), with an announcement in inactive lanes that have a signal.
  template <class... Count>
  SLAMB_ALWAYS_INLINE f32x16 keep_or_announce(const f32x16& x, std::uint32_t i, Count... count) const {
    const f32x16 kept = keep(x, i, count...);
    const std::uint32_t which = announcing(i, static_cast<std::uint32_t>(count)...);
    if (which == 0) return kept;
    return select(mask_of(which), select(f32x16(0.0F) < absolute(x), f32x16(announcement), f32x16(0.0F)), kept);
  }
  std::uint64_t operator()(std::uint32_t begin, std::uint32_t end) const {
    if (bits == nullptr) return end - begin;
    std::uint64_t all = 0;
    for (std::uint32_t i = begin; i < end; i += lanes) all += count_of(at(i, end - i));
    return all;
  }

 private:
  static const std::uint16_t* bits_of(const std::uint16_t* all, const wire_view& wire, const wire_tile& t) {
    return all == nullptr ? nullptr : all + (t.owner * wire.codes + t.code) / lanes;
  }
};

/// Prefetches data that a loop over one array will soon read. Processors prefetch by themselves, but stop at the end of a page.
/// Several arrays make up for each other's stops; one array alone needs this. The address may lie beyond the array, because a
/// prefetch does not access it.
template <class T>
SLAMB_ALWAYS_INLINE void read_ahead(const T* from) {
  constexpr std::ptrdiff_t distance = 8192;  // bytes: two pages
  __builtin_prefetch(reinterpret_cast<const std::byte*>(from) + distance);
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
