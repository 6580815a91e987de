// Reads and writes codes of a few bits in kernels, and draws random numbers for stochastic rounding. The bytes are the same as in
// backend/host/detail/codes.hpp, and the numbers as in backend/host/detail/uniform.hpp.
//
// A thread writes eight consecutive codes at a time. They are `Bits` bytes, which no other thread writes, and they need one
// draw of Philox. A thread reads one code at a time, or four.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/group.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/random.hpp"

namespace slamb::detail::cuda {

/// True for widths of a code that divide a word; others are read and written byte by byte.
template <int Bits>
inline constexpr bool is_code_width = Bits == 1 || Bits == 2 || Bits == 4 || Bits == 8 || Bits == 16 || Bits == 32;

// Messages are aligned for floats only, so codes are read and written in words of at most 4 bytes.
template <class Word>
SLAMB_ELEMENT std::uint32_t read_word(const std::byte* from) {
  Word word;
  __builtin_memcpy(&word, __builtin_assume_aligned(from, sizeof(Word)), sizeof(Word));
  return word;
}
template <class Word>
SLAMB_ELEMENT void write_word(std::uint32_t value, std::byte* to) {
  const auto word = static_cast<Word>(value);
  __builtin_memcpy(__builtin_assume_aligned(to, sizeof(Word)), &word, sizeof(Word));
}

template <int Bits>
inline constexpr std::uint32_t ones = 0xFFFFFFFFU >> (32 - Bits);

/// Reads codes.
///
/// @param codes  the codes of a tile: code i has its bits [i·Bits, (i + 1)·Bits), least significant first; aligned to 4 bytes,
///               or to 2·Bits bytes if these are fewer
template <int Bits, unsigned W>
SLAMB_ELEMENT words<W> load_codes(const std::byte* codes, group<W> at) {
  static_assert(W == 1 || W == 4);
  constexpr unsigned bits = Bits;
  words<W> code;
  if constexpr (!is_code_width<Bits>) {
    for (unsigned j = 0; j < W; ++j) {
      const std::uint64_t first = std::uint64_t{at.i + j} * bits;
      std::uint64_t word = 0;
      for (unsigned k = 0; 8 * k < first % 8 + bits; ++k)
        word |= static_cast<std::uint64_t>(codes[first / 8 + k]) << (8 * k);
      code.of[j] = static_cast<std::uint32_t>(word >> (first % 8)) & ones<Bits>;
    }
  } else {
    constexpr unsigned together = bits * W;
    const std::byte* const from = codes + std::size_t{at.i} * bits / 8;
    if constexpr (together <= 16) {
      std::uint32_t word = 0;
      if constexpr (together == 16) {
        word = read_word<std::uint16_t>(from);
      } else {
        word = read_word<std::uint8_t>(from) >> (at.i * bits % 8);
      }
      for (unsigned j = 0; j < W; ++j) code.of[j] = word >> (j * bits) & ones<Bits>;
    } else {
      std::uint32_t word[together / 32];
      for (unsigned k = 0; k < together / 32; ++k) word[k] = read_word<std::uint32_t>(from + std::size_t{4} * k);
      for (unsigned j = 0; j < W; ++j) code.of[j] = word[j * bits / 32] >> (j * bits % 32) & ones<Bits>;
    }
  }
  return code;
}

/// Writes eight codes, each below 2^Bits.
template <int Bits>
SLAMB_ELEMENT void store_codes(const words<8>& code, std::byte* codes, group<8> at) {
  constexpr unsigned bits = Bits;
  std::byte* to = codes + std::size_t{at.i / 8} * bits;
  if constexpr (!is_code_width<Bits>) {
    std::uint64_t word = 0;  // not yet written
    unsigned number = 0;
    for (unsigned j = 0; j < 8; ++j) {
      word |= std::uint64_t{code.of[j]} << number;
      for (number += bits; number >= 8; number -= 8, word >>= 8U) *to++ = static_cast<std::byte>(word & 0xFFU);
    }
  } else if constexpr (Bits <= 4) {
    std::uint32_t word = 0;
    for (unsigned j = 0; j < 8; ++j) word |= code.of[j] << (j * bits);
    if constexpr (Bits == 1) write_word<std::uint8_t>(word, to);
    if constexpr (Bits == 2) write_word<std::uint16_t>(word, to);
    if constexpr (Bits == 4) write_word<std::uint32_t>(word, to);
  } else {
    constexpr unsigned in_word = 32 / bits;
    for (unsigned k = 0; k < bits / 4; ++k) {
      std::uint32_t word = 0;
      for (unsigned j = 0; j < in_word; ++j) word |= code.of[k * in_word + j] << (j * bits);
      write_word<std::uint32_t>(word, to + std::size_t{4} * k);
    }
  }
}

/// Draws uniform numbers in (0, 1) for elements `first` … `first` + 7 of a stream, as host::fill_uniform.
///
/// @param first  a multiple of 8
SLAMB_ELEMENT reals<8> draw_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
  const random_words drawn = philox(seed, first / 8, stream);
  words<8> draw;
  for (unsigned j = 0; j < 8; ++j) draw.of[j] = drawn.word[j / 2] >> (j % 2 * 16) & 0xFFFFU;
  return to_real(draw) * reals<8>(0x1p-16F) + reals<8>(0x1p-17F);
}

}  // namespace slamb::detail::cuda
