// The codes, scales and errors of a tile in a quantized exchange, and the mask of its active elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// The storage type of errors that are not kept.
struct no_storage {};

/// An array of errors: float, bfloat16, or none.
template <class Storage>
struct error_array {
  static constexpr bool exists = true;
  static constexpr bool is_float = std::is_same_v<Storage, float>;
  using number = std::conditional_t<is_float, float, std::uint16_t>;
  number* first = nullptr;

  SLAMB_HOST_DEVICE error_array(void* array, std::uint64_t offset) : first(static_cast<number*>(array) + offset) {}

  template <class At>
  SLAMB_ELEMENT typename At::real load(At at) const {
    if constexpr (is_float)
      return load_array(first, at);
    else
      return load_array(bfloat16_numbers{first}, at);
  }
  template <class At>
  SLAMB_ELEMENT void store(const typename At::real& x, At at) const {
    if constexpr (is_float)
      store_array(x, first, at);
    else
      store_words(bfloat16_bits(x), first, at);  // finite errors stay finite
  }
  SLAMB_ELEMENT void clear(std::size_t i) const { first[i] = {}; }
  // A bound of x after it is rounded for storage. The check for a finite square uses it, because an error that was rounded up to
  // a value with an infinite square could never be sent.
  template <class Real>
  SLAMB_ELEMENT static Real bound(const Real& x) {
    return is_float ? x : x * Real(1.0F + 0x1p-7F);
  }
};
template <>
struct error_array<no_storage> {
  static constexpr bool exists = false;
  SLAMB_HOST_DEVICE error_array(void* /*array*/, std::uint64_t /*offset*/) {}
  template <class Real>
  SLAMB_ELEMENT static const Real& bound(const Real& x) {
    return x;
  }
};

/// Scale number `index` of a message.
SLAMB_ELEMENT float load_scale(const std::byte* message, std::uint64_t index) {
  float scale = 0.0F;
  __builtin_memcpy(&scale, __builtin_assume_aligned(message + index * sizeof(float), sizeof(float)), sizeof(float));
  return scale;
}
SLAMB_ELEMENT void store_scale(std::byte* message, std::uint64_t index, float scale) {
  __builtin_memcpy(__builtin_assume_aligned(message + index * sizeof(float), sizeof(float)), &scale, sizeof(float));
}

/// The scale as a quantizer sends it: a float, or a byte. `write_scale` returns the scale that will be read.
template <class Quantizer>
SLAMB_ELEMENT float read_scale(const Quantizer& quantizer, const std::byte* message, std::uint64_t index) {
  if constexpr (capability::sends_scales_in_bytes<Quantizer>)
    return quantizer.decode_scale(static_cast<std::uint8_t>(message[index]));
  else
    return load_scale(message, index);
}
template <class Quantizer>
SLAMB_ELEMENT float write_scale(const Quantizer& quantizer, std::byte* message, std::uint64_t index, float scale) {
  if constexpr (capability::sends_scales_in_bytes<Quantizer>) {
    const std::uint8_t byte = quantizer.encode_scale(scale);
    message[index] = static_cast<std::byte>(byte);
    return quantizer.decode_scale(byte);
  } else {
    store_scale(message, index, scale);
    return scale;
  }
}

/// The elements that share a scale of a quantizer: a block (`has_blocks`), or a tensor or all (`is_shared`).
template <class Quantizer>
struct scale_traits {
  static constexpr bool has_blocks = Quantizer::scale != segment_scale::none && requires(const Quantizer& q) {
    q.block;
  };
  static constexpr bool is_shared = Quantizer::scale != segment_scale::none && !has_blocks;

  /// An element's number, shifted right by this, is the number of its block: the logarithm of a power of two.
  SLAMB_HOST_DEVICE static unsigned block_shift(const Quantizer& quantizer) {
    if constexpr (has_blocks)
      return trailing_zeros_of(static_cast<std::uint32_t>(quantizer.block));
    else
      return 0;
  }
};

/// The codes and scales of a tile in a message.
template <class Quantizer, class Byte>
struct tile_codes {
  static constexpr int bits = Quantizer::bits_per_element;

  const Quantizer& quantizer;
  Byte* message;
  Byte* codes;
  std::uint64_t scale;
  unsigned shift;

  SLAMB_HOST_DEVICE tile_codes(const Quantizer& q, Byte* of_owner, const wire_view& wire, const wire_tile& t)
      : tile_codes(q, of_owner, wire.codes_at, t) {}
  SLAMB_HOST_DEVICE tile_codes(const Quantizer& q, Byte* of_owner, std::uint64_t codes_at, const wire_tile& t)
      : quantizer(q),
        message(of_owner),
        codes(of_owner + codes_at + t.code * bits / 8),
        scale(t.scale),
        shift(scale_traits<Quantizer>::block_shift(q)) {}

  // The scale of element i: its block's, or the shared one, or 1 if the quantizer has no scale.
  SLAMB_ELEMENT float scale_at([[maybe_unused]] std::size_t i) const {
    if constexpr (Quantizer::scale == segment_scale::none)
      return 1.0F;
    else if constexpr (scale_traits<Quantizer>::has_blocks)
      return read_scale(quantizer, message, scale + (i >> shift));
    else
      return load_scale(message, scale);
  }
  template <class At>
  SLAMB_ELEMENT typename At::real decode(At at) const {
    return decode(at, scale_at(at.i));
  }
  /// @param its_scale  in place of the scale in the message
  template <class At>
  SLAMB_ELEMENT typename At::real decode(At at, float its_scale) const {
    using Real = typename At::real;
    return quantizer.template decode<Real>(load_codes<bits>(static_cast<const std::byte*>(codes), at), Real(its_scale));
  }
  template <class At>
  SLAMB_ELEMENT void encode(const typename At::real& x, float its_scale, const typename At::real& uniform,
                            At at) const {
    store_codes<bits>(encoded(quantizer, x, its_scale, uniform), codes, at);
  }
};

/// The mask of a tile's active elements.
struct tile_active {
  const std::uint16_t* bits = nullptr;          // null: all are active
  const std::uint16_t* may_announce = nullptr;  // null: all that are inactive
  bool announces = false;                       // inactive elements announce signals

  tile_active() = default;
  SLAMB_HOST_DEVICE tile_active(const wire_view& wire, const wire_tile& t)
      : bits(bits_of(wire.active, wire, t)),
        may_announce(bits_of(wire.may_announce, wire, t)),
        announces(wire.announces && bits != nullptr) {}

  /// The number of active elements among i … i + min(count, 16) − 1; i is a multiple of 16.
  SLAMB_ELEMENT std::uint32_t number(std::uint32_t i, std::uint32_t count) const {
    const std::uint32_t existing = count >= code_group ? 0xFFFFU : (1U << count) - 1U;
    return ::slamb::detail::count_of(bits == nullptr ? existing : existing & bits[i / code_group]);
  }
  /// x, with 0 for elements that are not active or do not exist.
  template <class At>
  SLAMB_ELEMENT typename At::real keep(const typename At::real& x, At at) const {
    if (bits == nullptr) return existing(x, at);
    return select(mask_of(bits_at(bits, at), at), x, typename At::real(0.0F));
  }
  /// The bits of elements that are inactive and announce signals.
  template <class At>
  SLAMB_ELEMENT std::uint32_t announcing(At at) const {
    if (!announces) return 0;
    const std::uint32_t inactive = ~bits_at(bits, at) & at.existing();
    return may_announce == nullptr ? inactive : inactive & bits_at(may_announce, at);
  }
  /// As `keep`, with an announcement for inactive elements that have a signal.
  template <class At>
  SLAMB_ELEMENT typename At::real keep_or_announce(const typename At::real& x, At at) const {
    using Real = typename At::real;
    const Real kept = keep(x, at);
    const std::uint32_t which = announcing(at);
    if (which == 0) return kept;
    const Real none(0.0F);
    return select(mask_of(which, at), select(none < absolute(x), Real(announcement), none), kept);
  }

 private:
  SLAMB_HOST_DEVICE static const std::uint16_t* bits_of(const std::uint16_t* all, const wire_view& wire,
                                                        const wire_tile& t) {
    return all == nullptr ? nullptr : all + (t.owner * wire.codes + t.code) / code_group;
  }
};

}  // namespace slamb::detail
