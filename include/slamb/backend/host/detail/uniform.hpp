// Uniform random numbers for stochastic rounding, many at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/random.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

#if defined(__SSE2__)

typedef std::uint64_t quads __attribute__((vector_size(SLAMB_SIMD_BYTES)));

// The 64-bit products of the lower 32 bits of each lane. Uses intrinsics, because compilers turn other code into products of 64
// by 64 bits.
SLAMB_ALWAYS_INLINE quads products(quads a, quads b) {
#if defined(__AVX512F__)
  return reinterpret_cast<quads>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<quads>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return reinterpret_cast<quads>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
}

// The counters of a register, in an order in which the two halves of an interleaving are consecutive.
inline constexpr int counters = SLAMB_SIMD_BYTES / 8;
inline constexpr std::uint64_t place_of_counter[counters] = {
#if defined(__AVX512F__)
    0, 4, 1, 5, 2,
    6, 3, 7
#elif defined(__AVX2__)
    0, 2, 1, 3
#else
    0, 1
#endif
};

// Writes a[0], b[0], a[1], b[1], … of the counters, in their order.
SLAMB_ALWAYS_INLINE void store_interleaved(quads a, quads b, std::byte* to) {
#if defined(__AVX512F__)
  const auto x = reinterpret_cast<__m512i>(a), y = reinterpret_cast<__m512i>(b);
  _mm512_storeu_si512(to, _mm512_maskz_unpacklo_epi64(0xFF, x, y));
  _mm512_storeu_si512(to + 64, _mm512_maskz_unpackhi_epi64(0xFF, x, y));
#elif defined(__AVX2__)
  const auto x = reinterpret_cast<__m256i>(a), y = reinterpret_cast<__m256i>(b);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi64(x, y));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), _mm256_unpackhi_epi64(x, y));
#else
  const auto x = reinterpret_cast<__m128i>(a), y = reinterpret_cast<__m128i>(b);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(x, y));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm_unpackhi_epi64(x, y));
#endif
}

/// Writes `philox` of sixteen counters, from (counter, stream) on, to `to` [256], least significant bytes first. Each counter has
/// a lane of 64 bits: the products need no other lanes, and their upper halves are ignored as factors.
SLAMB_ALWAYS_INLINE void random_bytes(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter, std::byte* to) {
  constexpr int together = 2;  // registers of counters: as many as fit with the rest
  quads place;
  std::memcpy(&place, place_of_counter, sizeof(place));
  const quads multiplier0 = quads{} + 0xD2511F53U, multiplier1 = quads{} + 0xCD9E8D57U;
  for (int first = 0; first < lanes; first += together * counters) {
    quads x0[together], x1[together], x2[together], x3[together];
    for (int i = 0; i < together; ++i) {
      x0[i] = place + (counter + static_cast<std::uint64_t>(first + i * counters));
      x1[i] = x0[i] >> 32;
      x2[i] = quads{} + stream;
      x3[i] = quads{} + (stream >> 32U);
    }
    auto key0 = static_cast<std::uint32_t>(seed);
    auto key1 = static_cast<std::uint32_t>(seed >> 32U);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < together; ++i) {
        const quads product0 = products(x0[i], multiplier0), product1 = products(x2[i], multiplier1);
        x0[i] = (product1 >> 32) ^ x1[i] ^ (quads{} + key0);
        x1[i] = product1;
        x2[i] = (product0 >> 32) ^ x3[i] ^ (quads{} + key1);
        x3[i] = product0;
      }
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    for (int i = 0; i < together; ++i)
      store_interleaved((x0[i] & 0xFFFFFFFFU) | x1[i] << 32, (x2[i] & 0xFFFFFFFFU) | x3[i] << 32,
                        to + (first + i * counters) * 16);
  }
}

#else

inline void random_bytes(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter, std::byte* to) {
  for (std::uint32_t j = 0; j < lanes; ++j) {
    const random_words drawn = philox(seed, counter + j, stream);
    for (std::uint32_t b = 0; b < 16; ++b)
      to[16 * j + b] = static_cast<std::byte>(drawn.word[b / 4] >> (b % 4 * 8) & 0xFFU);
  }
}

#endif

#if defined(__AVX2__)
// Of two copies of the halves h[0] … h[7], each half of which moves h[k + s mod 8] to k; s = 8 means 0 in place of them.
struct moved_halves {
  alignas(32) std::uint8_t byte[32];

  constexpr moved_halves(unsigned s0, unsigned s1) : byte{} {
    for (unsigned b = 0; b < 32; ++b) {
      const unsigned s = b < 16 ? s0 : s1;
      byte[b] = static_cast<std::uint8_t>(s == 8 ? 128 : (b + 2 * s) % 16);
    }
  }
  SLAMB_ALWAYS_INLINE __m256i of(__m256i halves) const {
    return _mm256_shuffle_epi8(halves, _mm256_load_si256(reinterpret_cast<const __m256i*>(byte)));
  }
};
inline constexpr moved_halves moved_by_none_and_1(8, 1), moved_by_1(1, 1), moved_by_2_and_3(2, 3),
    moved_by_4_and_5(4, 5);
#endif

/// Writes `rounding_draws::draw_of` of all elements of sixteen counters, from (counter, stream) on, to `to` [2048].
SLAMB_ALWAYS_INLINE void bits_for_rounding(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter,
                                           std::byte* to) {
  alignas(SLAMB_SIMD_BYTES) std::byte random[16 * lanes];
  random_bytes(seed, stream, counter, random);
  for (int j = 0; j < lanes; ++j, to += 128) {
#if defined(__AVX2__)
    const __m256i one = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(random) + j));
    const __m256i two = _mm256_xor_si256(one, moved_by_1.of(one)), others = moved_by_2_and_3.of(one);
    auto* const draws = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(draws, _mm256_xor_si256(one, moved_by_none_and_1.of(one)));
    _mm256_storeu_si256(draws + 1, _mm256_xor_si256(one, others));
    _mm256_storeu_si256(draws + 2, _mm256_xor_si256(two, others));
    _mm256_storeu_si256(draws + 3, _mm256_xor_si256(two, moved_by_4_and_5.of(one)));
#else
    std::byte halves[32];  // twice
    std::memcpy(halves, random + 16 * j, 16);
    std::memcpy(halves + 16, random + 16 * j, 16);
    std::memcpy(to, halves, 16);
    for (int s = 1; s < 8; ++s)
      for (int b = 0; b < 16; ++b)
        to[16 * s + b] = s < 4 ? halves[b] ^ halves[b + 2 * s] : halves[b] ^ halves[b + 2] ^ halves[b + 2 * (s - 2)];
#endif
  }
}

/// Writes uniform numbers in (0, 1) for elements first … first + count − 1 of a stream: (r + ½)/2^16, with an r of sixteen bits.
///
/// r of element i begins at bit 16 (i mod 8) of the four words of Philox with key `seed` and counter (i/8, `stream`).
///
/// @param first  a multiple of 8
/// @param to     [count]
/// *Determinism*: a function of (seed, stream, element): the same on every backend, for any division into calls.
inline void fill_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, std::uint32_t count,
                         float* to) {
  constexpr std::uint32_t chunk = lanes * 8;
  alignas(SLAMB_SIMD_BYTES) std::byte bits[2 * chunk];
  for (std::uint32_t begin = 0; begin < count; begin += chunk) {
    random_bytes(seed, stream, (first + begin) / 8, bits);
    const std::uint32_t part = std::min(chunk, count - begin);
    for (std::uint32_t i = 0; i < part; i += lanes) {
      const f32x16 numbers = to_real(load_codes<16>(bits + 2 * i)) * f32x16(0x1p-16F) + f32x16(0x1p-17F);
      if (part - i >= lanes) {
        numbers.store(to + begin + i);
      } else {
        numbers.store(to + begin + i, static_cast<int>(part - i));
      }
    }
  }
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
