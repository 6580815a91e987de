// Uniform random numbers for stochastic rounding, many at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

// The upper and the lower 32 bits of products of 32-bit integers.
struct upper_product {
  SLAMB_ALWAYS_INLINE native::words operator()(native::words x, native::words y) const {
    const quads even = products(reinterpret_cast<quads>(x), reinterpret_cast<quads>(y)),
                odd = products(reinterpret_cast<quads>(x) >> 32, reinterpret_cast<quads>(y));
    return reinterpret_cast<native::words>(even >> 32 | (odd & 0xFFFFFFFF00000000U));
  }
};
struct lower_product {
  SLAMB_ALWAYS_INLINE native::words operator()(native::words x, native::words y) const {
    const quads even = products(reinterpret_cast<quads>(x), reinterpret_cast<quads>(y)),
                odd = products(reinterpret_cast<quads>(x) >> 32, reinterpret_cast<quads>(y));
    return reinterpret_cast<native::words>((even & 0xFFFFFFFFU) | odd << 32);
  }
};

/// Writes word 0, 1, 2, 3 of counter 0, of counter 1, …, counter 15 to `to` [256].
SLAMB_ALWAYS_INLINE void store_by_counter(const std::uint32_t (&word)[4][lanes], std::byte* to) {
  for (int j = 0; j < lanes; j += 4) {
    __m128i row[4];
    for (int w = 0; w < 4; ++w) row[w] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(word[w] + j));
    const __m128i low01 = _mm_unpacklo_epi32(row[0], row[1]), high01 = _mm_unpackhi_epi32(row[0], row[1]);
    const __m128i low23 = _mm_unpacklo_epi32(row[2], row[3]), high23 = _mm_unpackhi_epi32(row[2], row[3]);
    auto* const column = reinterpret_cast<__m128i*>(to + 16 * j);
    _mm_storeu_si128(column, _mm_unpacklo_epi64(low01, low23));
    _mm_storeu_si128(column + 1, _mm_unpackhi_epi64(low01, low23));
    _mm_storeu_si128(column + 2, _mm_unpacklo_epi64(high01, high23));
    _mm_storeu_si128(column + 3, _mm_unpackhi_epi64(high01, high23));
  }
}

/// Writes `philox` of sixteen counters, from (counter, stream) on, to `to` [256], least significant bytes first.
SLAMB_ALWAYS_INLINE void random_bytes(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter, std::byte* to) {
  static constexpr std::uint32_t place[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const words multiplier0(0xD2511F53U), multiplier1(0xCD9E8D57U), low(static_cast<std::uint32_t>(counter));
  words x0 = low + words::load(place);
  words x1 = words(static_cast<std::uint32_t>(counter >> 32U)) + select(x0 < low, words(1U), words(0U));
  words x2(static_cast<std::uint32_t>(stream));
  words x3(static_cast<std::uint32_t>(stream >> 32U));
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32U);
  for (int round = 0; round < 10; ++round) {
    const words upper0 = lanewise<words>(upper_product{}, x0, multiplier0);
    const words upper1 = lanewise<words>(upper_product{}, x2, multiplier1);
    const words lower0 = lanewise<words>(lower_product{}, x0, multiplier0);
    const words lower1 = lanewise<words>(lower_product{}, x2, multiplier1);
    x0 = upper1 ^ x1 ^ words(key0);
    x1 = lower1;
    x2 = upper0 ^ x3 ^ words(key1);
    x3 = lower0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  std::uint32_t word[4][lanes];
  x0.store(word[0]);
  x1.store(word[1]);
  x2.store(word[2]);
  x3.store(word[3]);
  store_by_counter(word, to);
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
      const floats numbers = to_real(load_codes<16>(bits + 2 * i)) * floats(0x1p-16F) + floats(0x1p-17F);
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
