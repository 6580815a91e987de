// Packs sixteen codes of a few bits into bytes on the wire, and unpacks them.
//
// Sixteen codes of `Bits` bits take 2·Bits bytes. Code i has bits [i·Bits, (i+1)·Bits), least significant first, on every
// processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// True for the widths of a code, in bits, that divide a word: these have instructions of their own. Others are packed one code
/// after another.
template <int Bits>
inline constexpr bool is_code_width = Bits == 1 || Bits == 2 || Bits == 4 || Bits == 8 || Bits == 16 || Bits == 32;

/// Writes sixteen codes of any width.
template <int Bits>
void store_codes_of_any_width(const u32x16& codes, std::byte* to) {
  std::uint32_t code[lanes];
  codes.store(code);
  std::uint64_t bits = 0;  // not yet written
  int number = 0;
  for (const std::uint32_t one : code) {
    bits |= std::uint64_t{one} << number;
    for (number += Bits; number >= 8; number -= 8, bits >>= 8U) *to++ = static_cast<std::byte>(bits & 0xFFU);
  }
}
/// Reads them.
template <int Bits>
u32x16 load_codes_of_any_width(const std::byte* from) {
  std::uint32_t code[lanes];
  std::uint64_t bits = 0;  // read, and not yet used
  int number = 0;
  for (std::uint32_t& one : code) {
    for (; number < Bits; number += 8) bits |= std::to_integer<std::uint64_t>(*from++) << number;
    one = static_cast<std::uint32_t>(bits & (0xFFFFFFFFU >> (32 - Bits)));
    bits >>= Bits;
    number -= Bits;
  }
  return u32x16::load(code);
}

#if defined(__SSE2__)
namespace native {

SLAMB_ALWAYS_INLINE __m128i load_bytes(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

#if defined(__AVX512F__)

SLAMB_ALWAYS_INLINE void store_halves(const host::u32x16& x, std::byte* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtepi32_epi16(0xFFFF, reinterpret_cast<__m512i>(x.part[0])));
}
SLAMB_ALWAYS_INLINE __m128i bytes_of(const host::u32x16& x) {
  return _mm512_maskz_cvtepi32_epi8(0xFFFF, reinterpret_cast<__m512i>(x.part[0]));
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_halves(const std::byte* from) {
  host::u32x16 x;
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  x.part[0] = reinterpret_cast<words>(_mm512_maskz_cvtepu16_epi32(0xFFFF, halves));
  return x;
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_bytes(__m128i bytes) {
  host::u32x16 x;
  x.part[0] = reinterpret_cast<words>(_mm512_maskz_cvtepu8_epi32(0xFFFF, bytes));
  return x;
}
SLAMB_ALWAYS_INLINE std::uint32_t lowest_bits(const host::u32x16& x) {
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(x.part[0]), _mm512_set1_epi32(1));
}

#elif defined(__AVX2__)

SLAMB_ALWAYS_INLINE __m256i halves_of(const host::u32x16& x) {
  const __m256i mixed = _mm256_packus_epi32(reinterpret_cast<__m256i>(x.part[0]), reinterpret_cast<__m256i>(x.part[1]));
  return _mm256_permute4x64_epi64(mixed, 0xD8);  // 0, 2, 1, 3: restores the order of the lanes
}
SLAMB_ALWAYS_INLINE void store_halves(const host::u32x16& x, std::byte* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves_of(x));
}
SLAMB_ALWAYS_INLINE __m128i bytes_of(const host::u32x16& x) {
  const __m256i halves = halves_of(x);
  return _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_halves(const std::byte* from) {
  host::u32x16 x;
  x.part[0] = reinterpret_cast<words>(_mm256_cvtepu16_epi32(load_bytes(from)));
  x.part[1] = reinterpret_cast<words>(_mm256_cvtepu16_epi32(load_bytes(from + 16)));
  return x;
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_bytes(__m128i bytes) {
  host::u32x16 x;
  x.part[0] = reinterpret_cast<words>(_mm256_cvtepu8_epi32(bytes));
  x.part[1] = reinterpret_cast<words>(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
  return x;
}
SLAMB_ALWAYS_INLINE std::uint32_t lowest_bits(const host::u32x16& x) {
  const host::u32x16 sign = x << 31;
  const int low = _mm256_movemask_ps(reinterpret_cast<__m256>(sign.part[0]));
  const int high = _mm256_movemask_ps(reinterpret_cast<__m256>(sign.part[1]));
  return static_cast<std::uint32_t>(low | high << 8);
}

#else

// Takes integers below 2^16. Sign-extends them first, because SSE2 packs only signed integers.
SLAMB_ALWAYS_INLINE __m128i halves_of(words low, words high) {
  const __m128i a = _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(low), 16), 16);
  const __m128i b = _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(high), 16), 16);
  return _mm_packs_epi32(a, b);
}
SLAMB_ALWAYS_INLINE void store_halves(const host::u32x16& x, std::byte* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves_of(x.part[0], x.part[1]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), halves_of(x.part[2], x.part[3]));
}
SLAMB_ALWAYS_INLINE __m128i bytes_of(const host::u32x16& x) {
  return _mm_packus_epi16(_mm_packs_epi32(reinterpret_cast<__m128i>(x.part[0]), reinterpret_cast<__m128i>(x.part[1])),
                          _mm_packs_epi32(reinterpret_cast<__m128i>(x.part[2]), reinterpret_cast<__m128i>(x.part[3])));
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_halves(__m128i low, __m128i high) {
  const __m128i zero = _mm_setzero_si128();
  host::u32x16 x;
  x.part[0] = reinterpret_cast<words>(_mm_unpacklo_epi16(low, zero));
  x.part[1] = reinterpret_cast<words>(_mm_unpackhi_epi16(low, zero));
  x.part[2] = reinterpret_cast<words>(_mm_unpacklo_epi16(high, zero));
  x.part[3] = reinterpret_cast<words>(_mm_unpackhi_epi16(high, zero));
  return x;
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_halves(const std::byte* from) {
  return words_of_halves(load_bytes(from), load_bytes(from + 16));
}
SLAMB_ALWAYS_INLINE host::u32x16 words_of_bytes(__m128i bytes) {
  const __m128i zero = _mm_setzero_si128();
  return words_of_halves(_mm_unpacklo_epi8(bytes, zero), _mm_unpackhi_epi8(bytes, zero));
}
SLAMB_ALWAYS_INLINE std::uint32_t lowest_bits(const host::u32x16& x) {
  return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_slli_epi16(bytes_of(x), 7)));
}

#endif

// Splits the eight lowest bytes into sixteen halves of four bits, one in each byte.
SLAMB_ALWAYS_INLINE __m128i nibbles_of(__m128i bytes) {
  const __m128i low = _mm_set1_epi8(0x0F);
  return _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
}
// Splits the eight lowest bytes, each below 16, into sixteen halves of two bits, one in each byte.
SLAMB_ALWAYS_INLINE __m128i pairs_of(__m128i nibbles) {
  const __m128i low = _mm_set1_epi8(0x03);
  return _mm_unpacklo_epi8(_mm_and_si128(nibbles, low), _mm_and_si128(_mm_srli_epi16(nibbles, 2), low));
}

}  // namespace native

/// Writes sixteen codes, each below 2^Bits, to `to` [2·Bits], of any alignment.
template <int Bits>
SLAMB_ALWAYS_INLINE void store_codes(const u32x16& codes, std::byte* to) {
  if constexpr (!is_code_width<Bits>) {
    store_codes_of_any_width<Bits>(codes, to);
  } else if constexpr (Bits == 32) {
    std::memcpy(to, codes.part, sizeof(codes.part));
  } else if constexpr (Bits == 16) {
    native::store_halves(codes, to);
  } else if constexpr (Bits == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), native::bytes_of(codes));
  } else if constexpr (Bits == 4) {
    const __m128i bytes = native::bytes_of(codes);
    const __m128i joined = _mm_and_si128(_mm_or_si128(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi16(0xFF));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(joined, joined));
  } else if constexpr (Bits == 2) {
    const __m128i bytes = native::bytes_of(codes);
    const __m128i twos = _mm_or_si128(bytes, _mm_srli_epi32(bytes, 6));
    const __m128i joined = _mm_and_si128(_mm_or_si128(twos, _mm_srli_epi32(twos, 12)), _mm_set1_epi32(0xFF));
    const __m128i halves = _mm_packs_epi32(joined, joined);
    const int four = _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves));
    std::memcpy(to, &four, sizeof(four));
  } else {
    const auto bits = static_cast<std::uint16_t>(native::lowest_bits(codes));
    std::memcpy(to, &bits, sizeof(bits));
  }
}

/// Reads sixteen codes from `from` [2·Bits], of any alignment.
template <int Bits>
SLAMB_ALWAYS_INLINE u32x16 load_codes(const std::byte* from) {
  if constexpr (!is_code_width<Bits>) {
    return load_codes_of_any_width<Bits>(from);
  } else if constexpr (Bits == 32) {
    u32x16 codes;
    std::memcpy(codes.part, from, sizeof(codes.part));
    return codes;
  } else if constexpr (Bits == 16) {
    return native::words_of_halves(from);
  } else if constexpr (Bits == 8) {
    return native::words_of_bytes(native::load_bytes(from));
  } else if constexpr (Bits == 4) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return native::words_of_bytes(native::nibbles_of(bytes));
  } else if constexpr (Bits == 2) {
    int four;
    std::memcpy(&four, from, sizeof(four));
    return native::words_of_bytes(native::pairs_of(native::nibbles_of(_mm_cvtsi32_si128(four))));
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return select(mask_of(bits), u32x16(1U), u32x16(0U));
  }
}

#else

template <int Bits>
void store_codes(const u32x16& codes, std::byte* to) {
  store_codes_of_any_width<Bits>(codes, to);
}
template <int Bits>
u32x16 load_codes(const std::byte* from) {
  return load_codes_of_any_width<Bits>(from);
}

#endif

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
