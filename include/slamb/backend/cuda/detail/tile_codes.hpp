// Reads and writes a tile's codes, scales and errors in a compressed exchange, and the mask of its active elements: as
// backend/host/detail/tile_codes.hpp, but for one element or four at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "slamb/backend/cuda/detail/codes.hpp"
#include "slamb/backend/cuda/detail/group.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::cuda {

/// Codes are stored in groups of sixteen elements; the bits of active elements are, too.
inline constexpr std::uint32_t code_group = 16;

/// `count` rounded up to whole groups of codes.
SLAMB_HOST_DEVICE constexpr std::uint32_t padded(std::uint32_t count) {
  return (count + code_group - 1) / code_group * code_group;
}

/// The storage type of errors that are not kept.
struct no_storage {};

/// An array of errors, as float or bfloat16, or none.
template <class Storage>
struct error_array {
  static constexpr bool exists = true;
  Storage* first = nullptr;

  SLAMB_HOST_DEVICE error_array(void* array, std::uint64_t offset) : first(static_cast<Storage*>(array) + offset) {}

  template <class At>
  SLAMB_ELEMENT typename At::real load(At at) const {
    return load_floats(first, at);
  }
  template <class At>
  SLAMB_ELEMENT void store(const typename At::real& x, At at) const {
    store_floats(x, first, at);
  }
  // A value whose magnitude is at least that of x once it is stored, because bfloat16 may round it up. Its square must be finite
  // too: otherwise the stored error could never be sent.
  template <class Real>
  SLAMB_ELEMENT static Real bound(const Real& x) {
    return std::is_same_v<Storage, float> ? x : x * Real(1.0F + 0x1p-7F);
  }
};
template <>
struct error_array<no_storage> {
  static constexpr bool exists = false;

  SLAMB_HOST_DEVICE error_array(void* /*array*/, std::uint64_t /*offset*/) {}

  template <class Real>
  SLAMB_ELEMENT static Real bound(const Real& x) {
    return x;
  }
};

/// Reads a scale, by its place in a message.
SLAMB_ELEMENT float load_scale(const std::byte* message, std::uint64_t index) {
  float scale = 0.0F;
  std::memcpy(&scale, __builtin_assume_aligned(message + index * sizeof(float), sizeof(float)), sizeof(float));
  return scale;
}
SLAMB_ELEMENT void store_scale(std::byte* message, std::uint64_t index, float scale) {
  std::memcpy(__builtin_assume_aligned(message + index * sizeof(float), sizeof(float)), &scale, sizeof(float));
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

  /// An element's number, shifted right by this, is the number of its block.
  SLAMB_HOST_DEVICE static unsigned block_shift([[maybe_unused]] const Quantizer& quantizer) {
    if constexpr (has_blocks)
      return trailing_zeros_of(static_cast<std::uint32_t>(quantizer.block));
    else
      return 0;
  }
};

/// The codes of one tile in a message, and their scales.
template <class Quantizer, class Byte>
struct tile_codes {
  static constexpr int bits = Quantizer::bits_per_element;

  Byte* message;
  Byte* codes;
  std::uint64_t scale;

  SLAMB_HOST_DEVICE tile_codes(Byte* of_owner, const wire_view& wire, const wire_tile& t)
      : tile_codes(of_owner, wire.codes_at, t) {}
  SLAMB_HOST_DEVICE tile_codes(Byte* of_owner, std::uint64_t codes_at, const wire_tile& t)
      : message(of_owner), codes(of_owner + codes_at + t.code * bits / 8), scale(t.scale) {}

  // The scale of element i: its block's, or the shared one, or 1 if the quantizer has no scale.
  SLAMB_ELEMENT float scale_at([[maybe_unused]] const Quantizer& quantizer, [[maybe_unused]] std::uint32_t i) const {
    if constexpr (Quantizer::scale == segment_scale::none)
      return 1.0F;
    else if constexpr (scale_traits<Quantizer>::has_blocks)
      return read_scale(quantizer, message, scale + (i >> scale_traits<Quantizer>::block_shift(quantizer)));
    else
      return load_scale(message, scale);
  }
  template <class At>
  SLAMB_ELEMENT typename At::real decode(const Quantizer& quantizer, At at, const typename At::real& its_scale) const {
    return quantizer.template decode<typename At::real>(load_codes<bits>(codes, at), its_scale);
  }
  template <class At>
  SLAMB_ELEMENT typename At::real decode(const Quantizer& quantizer, At at) const {
    return decode(quantizer, at, scale_at(quantizer, at.i));
  }
};

/// The active elements of a tile.
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
    return count_of(bits == nullptr ? existing : existing & bits[i / code_group]);
  }
  /// x, and 0 for elements that are not active.
  template <class At>
  SLAMB_ELEMENT typename At::real keep(const typename At::real& x, At at) const {
    if (bits == nullptr) return x;
    return select(mask_of(bits_at(bits, at), at), x, typename At::real(0.0F));
  }
  /// The bits of elements that are inactive and announce signals.
  template <class At>
  SLAMB_ELEMENT std::uint32_t announcing(At at) const {
    if (!announces) return 0;
    const std::uint32_t may = may_announce == nullptr ? all_bits(at) : bits_at(may_announce, at);
    return may & ~bits_at(bits, at);
  }
  /// As `keep`, with an announcement for inactive elements that have a signal.
  template <class At>
  SLAMB_ELEMENT typename At::real keep_or_announce(const typename At::real& x, At at) const {
    using real = typename At::real;
    const real announced = select(real(0.0F) < absolute(x), real(announcement), real(0.0F));
    return select(mask_of(announcing(at), at), announced, keep(x, at));
  }

 private:
  SLAMB_HOST_DEVICE static const std::uint16_t* bits_of(const std::uint16_t* all, const wire_view& wire,
                                                        const wire_tile& t) {
    return all == nullptr ? nullptr : all + (t.owner * wire.codes + t.code) / code_group;
  }
};

}  // namespace slamb::detail::cuda
