// The registers behind `floats`: their types, and what has no operator.
//
// The number of lanes is fixed, whatever the width of the registers; a vector of sixteen floats is one, two or four of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "slamb/core/config.hpp"

// The header of the widest set alone: all of them take a third of a second to compile.
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#else
#include <cmath>
#endif

#if defined(__AVX512F__)
#define SLAMB_SIMD_BYTES 64
#define SLAMB_SIMD_NAMESPACE avx512
#elif defined(__AVX2__)
#define SLAMB_SIMD_BYTES 32
#define SLAMB_SIMD_NAMESPACE avx2
#elif defined(__SSE2__)
#define SLAMB_SIMD_BYTES 16
#define SLAMB_SIMD_NAMESPACE sse2
#else
#define SLAMB_SIMD_BYTES 16
#define SLAMB_SIMD_NAMESPACE generic
#endif

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

inline constexpr int lanes = 16;

namespace native {

inline constexpr int width = SLAMB_SIMD_BYTES / 4;  // floats in a register
inline constexpr int parts = lanes / width;

typedef float floats __attribute__((vector_size(SLAMB_SIMD_BYTES)));
typedef std::int32_t ints __attribute__((vector_size(SLAMB_SIMD_BYTES)));
typedef double doubles __attribute__((vector_size(SLAMB_SIMD_BYTES)));

// Register by register: compilers take a copy of all of them at once through the stack, in pieces of other sizes than the
// registers', for which a processor has to wait.
template <class Register, class T>
SLAMB_ALWAYS_INLINE void load_parts(Register (&part)[parts], const T* from) {
  std::memcpy(&part[0], from, sizeof(Register));
  if constexpr (parts > 1) std::memcpy(&part[1], from + width, sizeof(Register));
  if constexpr (parts > 2) {
    std::memcpy(&part[2], from + 2 * width, sizeof(Register));
    std::memcpy(&part[3], from + 3 * width, sizeof(Register));
  }
}
template <class Register, class T>
SLAMB_ALWAYS_INLINE void store_parts(const Register (&part)[parts], T* to) {
  std::memcpy(to, &part[0], sizeof(Register));
  if constexpr (parts > 1) std::memcpy(to + width, &part[1], sizeof(Register));
  if constexpr (parts > 2) {
    std::memcpy(to + 2 * width, &part[2], sizeof(Register));
    std::memcpy(to + 3 * width, &part[3], sizeof(Register));
  }
}

// The masked forms of AVX-512's intrinsics take no undefined operand, about which g++ 12 would warn in the user's
// program.
SLAMB_ALWAYS_INLINE floats square_root(floats x) {
#if defined(__AVX512F__)
  return reinterpret_cast<floats>(_mm512_maskz_sqrt_ps(0xFFFF, reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#elif defined(__SSE2__)
  return reinterpret_cast<floats>(_mm_sqrt_ps(reinterpret_cast<__m128>(x)));
#else
  for (int i = 0; i < width; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

SLAMB_ALWAYS_INLINE floats select(ints mask, floats yes, floats no) {
  return reinterpret_cast<floats>((mask & reinterpret_cast<ints>(yes)) | (~mask & reinterpret_cast<ints>(no)));
}

SLAMB_ALWAYS_INLINE doubles widen_low(floats x) {
#if defined(__AVX512F__)
  const __m256d low = _mm512_maskz_extractf64x4_pd(0xF, _mm512_castps_pd(reinterpret_cast<__m512>(x)), 0);
  return reinterpret_cast<doubles>(_mm512_maskz_cvtps_pd(0xFF, _mm256_castpd_ps(low)));
#elif defined(__AVX2__)
  return reinterpret_cast<doubles>(_mm256_cvtps_pd(_mm256_castps256_ps128(reinterpret_cast<__m256>(x))));
#elif defined(__SSE2__)
  return reinterpret_cast<doubles>(_mm_cvtps_pd(reinterpret_cast<__m128>(x)));
#else
  return doubles{x[0], x[1]};
#endif
}

SLAMB_ALWAYS_INLINE doubles widen_high(floats x) {
#if defined(__AVX512F__)
  const __m256d high = _mm512_maskz_extractf64x4_pd(0xF, _mm512_castps_pd(reinterpret_cast<__m512>(x)), 1);
  return reinterpret_cast<doubles>(_mm512_maskz_cvtps_pd(0xFF, _mm256_castpd_ps(high)));
#elif defined(__AVX2__)
  return reinterpret_cast<doubles>(_mm256_cvtps_pd(_mm256_extractf128_ps(reinterpret_cast<__m256>(x), 1)));
#elif defined(__SSE2__)
  return reinterpret_cast<doubles>(
      _mm_cvtps_pd(_mm_movehl_ps(reinterpret_cast<__m128>(x), reinterpret_cast<__m128>(x))));
#else
  return doubles{x[2], x[3]};
#endif
}

}  // namespace native

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
