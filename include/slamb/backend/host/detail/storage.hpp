// Reads and writes arrays of float, bfloat16 or half as `f32x16`, by the same function names. The functions for other types than
// float are templates, because nvcc compiles every other function, and takes no vectors in functions that are for the device too.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/rounding.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// Sixteen words of sixteen bits each.
template <class T>
SLAMB_ALWAYS_INLINE u32x16 load_bits(const T* from) {
#if defined(__SSE2__)
  return load_codes<16>(reinterpret_cast<const std::byte*>(from));
#else
  std::uint32_t all[lanes];
  for (int i = 0; i < lanes; ++i) all[i] = from[i].bits;
  return u32x16::load(all);
#endif
}
template <class T>
SLAMB_ALWAYS_INLINE void store_bits(const u32x16& bits, T* to) {
#if defined(__SSE2__)
  store_codes<16>(bits, reinterpret_cast<std::byte*>(to));
#else
  std::uint32_t all[lanes];
  bits.store(all);
  for (int i = 0; i < lanes; ++i) to[i].bits = static_cast<std::uint16_t>(all[i]);
#endif
}

/// Loads sixteen numbers from `from`, of any alignment.
SLAMB_ALWAYS_INLINE f32x16 load_floats(const float* from) { return f32x16::load(from); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE f32x16 load_floats(const T* from) {
  return real_of_bfloat16_bits(load_bits(from));
}
template <std::same_as<half> T>
SLAMB_ALWAYS_INLINE f32x16 load_floats(const T* from) {
#if defined(__AVX512F__)
  f32x16 x;
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  x.part[0] = reinterpret_cast<native::floats>(_mm512_maskz_cvtph_ps(0xFFFF, bits));
  return x;
#elif defined(__AVX2__) && defined(__F16C__)
  f32x16 x;
  const auto* const bits = reinterpret_cast<const __m128i*>(from);
  x.part[0] = reinterpret_cast<native::floats>(_mm256_cvtph_ps(_mm_loadu_si128(bits)));
  x.part[1] = reinterpret_cast<native::floats>(_mm256_cvtph_ps(_mm_loadu_si128(bits + 1)));
  return x;
#else
  return real_of_half_bits<f32x16>(load_bits(from));
#endif
}

/// Loads `count` numbers. The other lanes become 0.
SLAMB_ALWAYS_INLINE f32x16 load_floats(const float* from, int count) { return f32x16::load(from, count); }
template <class T>
requires(std::same_as<T, bfloat16> || std::same_as<T, half>) SLAMB_ALWAYS_INLINE f32x16
    load_floats(const T* from, int count) {
  T all[lanes] = {};
  for (int i = 0; i < count; ++i) all[i] = from[i];
  return load_floats(all);
}

/// Stores the first `count` of sixteen words of sixteen bits each, and nothing else.
template <class T>
SLAMB_ALWAYS_INLINE void store_bits(const u32x16& bits, T* to, int count) {
  T all[lanes];
  store_bits(bits, all);
  for (int i = 0; i < count; ++i) to[i] = all[i];
}

/// Stores sixteen numbers, or the first `count`, each rounded to the nearest number of the array's type. Finite numbers stay
/// finite.
SLAMB_ALWAYS_INLINE void store_floats(const f32x16& x, float* to) { x.store(to); }
SLAMB_ALWAYS_INLINE void store_floats(const f32x16& x, float* to, int count) { x.store(to, count); }
template <std::same_as<bfloat16> T, class... Count>
SLAMB_ALWAYS_INLINE void store_floats(const f32x16& x, T* to, Count... count) {
  store_bits(bfloat16_bits(x), to, count...);
}

/// Loads sixteen bytes, or `count`. The other lanes become 0.
SLAMB_ALWAYS_INLINE u32x16 load_bytes(const std::uint8_t* from) {
  return load_codes<8>(reinterpret_cast<const std::byte*>(from));
}
SLAMB_ALWAYS_INLINE u32x16 load_bytes(const std::uint8_t* from, int count) {
  std::uint8_t all[lanes] = {};
  for (int i = 0; i < count; ++i) all[i] = from[i];
  return load_bytes(all);
}

// Arrays of a type known at run time, from element i on. Count… is empty, or the number of elements.

/// The address of element i.
SLAMB_ALWAYS_INLINE const void* address_of(const scaled_floats& array, std::size_t i) { return array.address + i; }
template <typed_array Typed>
SLAMB_ALWAYS_INLINE const void* address_of(const Typed& array, std::size_t i) {
  return static_cast<const std::byte*>(array.address) + i * size_of(array.type);
}

template <typed_array Typed, class... Count>
SLAMB_ALWAYS_INLINE f32x16 load_typed(const Typed& array, std::size_t i, Count... count) {
  if (array.type == element_type::bfloat16)
    return load_floats(static_cast<const bfloat16*>(array.address) + i, count...);
  if (array.type == element_type::float16) return load_floats(static_cast<const half*>(array.address) + i, count...);
  return load_floats(static_cast<const float*>(array.address) + i, count...);
}

/// True if any lane is set.
template <class Mask>
SLAMB_ALWAYS_INLINE bool any(const Mask& mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask.part[0]), reinterpret_cast<__m512i>(mask.part[0])) != 0;
#else
  native::ints all = mask.part[0];
  for (int i = 1; i < native::parts; ++i) all |= mask.part[i];
#if defined(__AVX2__)
  return _mm256_movemask_epi8(reinterpret_cast<__m256i>(all)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8(reinterpret_cast<__m128i>(all)) != 0;
#else
  for (int i = 0; i < native::width; ++i)
    if (all[i] != 0) return true;
  return false;
#endif
#endif
}

// Compared as signed integers, because older processors compare no others.
struct signed_above {
  SLAMB_ALWAYS_INLINE native::ints operator()(native::words a, native::words b) const {
    return reinterpret_cast<native::ints>(reinterpret_cast<native::ints>(a) > reinterpret_cast<native::ints>(b));
  }
};

/// True if First ≤ |x| < Past in all lanes, compared as bits: NaN is above all numbers.
template <std::uint32_t First, std::uint32_t Past, class Floats>
SLAMB_ALWAYS_INLINE bool all_within(const Floats& x) {
  const u32x16 magnitude = as_word(x) & u32x16(0x7FFFFFFFU);
#if defined(__AVX512F__)
  const u32x16 distance = magnitude - u32x16(First), range(Past - First);
  return _mm512_cmpge_epu32_mask(reinterpret_cast<__m512i>(distance.part[0]),
                                 reinterpret_cast<__m512i>(range.part[0])) == 0;
#else
  constexpr std::uint32_t shift = First == 0 ? 0U : 0x80000000U;
  return !any(lanewise<lane_mask>(signed_above{}, magnitude + u32x16(shift - First), u32x16(Past - First + shift - 1)));
#endif
}

// Roundings without the cases that hardly ever occur: NaN, and numbers that would overflow.

template <class Floats>
SLAMB_ALWAYS_INLINE u32x16 quick_nearest_bfloat16_bits(const Floats& x) {
  const u32x16 bits = as_word(x);
  if (!all_within<0U, 0x7F800001U>(x)) [[unlikely]]
    return nearest_bfloat16_bits(x);
  return (bits + u32x16(0x7FFFU) + ((bits >> 16) & u32x16(1U))) >> 16;
}
template <class Floats>
SLAMB_ALWAYS_INLINE u32x16 quick_stochastic_bfloat16_bits(const Floats& x, const u32x16& draw) {
  if (!all_within<0U, 0x7F7F0000U>(x)) [[unlikely]]
    return stochastic_bfloat16_bits(x, draw);
  return (as_word(x) + draw) >> 16;
}

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__))
#define SLAMB_CONVERTS_HALVES 1
/// Stores sixteen halves, rounded as `Mode`, _MM_FROUND_…, says.
template <int Mode, class Floats>
SLAMB_ALWAYS_INLINE void store_converted(const Floats& x, half* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(0xFFFF, reinterpret_cast<__m512>(x.part[0]), Mode | _MM_FROUND_NO_EXC));
#else
  for (int i = 0; i < 2; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, _mm256_cvtps_ph(reinterpret_cast<__m256>(x.part[i]), Mode));
#endif
}
#else
#define SLAMB_CONVERTS_HALVES 0
#endif

template <class Floats>
SLAMB_ALWAYS_INLINE void store_halves(const Floats& x, half* to) {
#if SLAMB_CONVERTS_HALVES
  if (all_within<0U, 0x7F800001U>(x)) [[likely]]
    return store_converted<_MM_FROUND_TO_NEAREST_INT>(x, to);
#endif
  store_bits(half_bits(x), to);
}
template <class Floats>
SLAMB_ALWAYS_INLINE void store_halves(const Floats& x, half* to, int count) {
  store_bits(half_bits(x), to, count);
}

// Normal halves below 65504 have 13 bits less than floats.
template <class Floats>
SLAMB_ALWAYS_INLINE void store_halves_by_chance(const Floats& x, const u32x16& draw, half* to) {
  if (!all_within<0x38800000U, 0x477FE000U>(x)) [[unlikely]]
    return store_bits(stochastic_half_bits(x, draw), to);
  const u32x16 moved = as_word(x) + (draw >> 3);
#if SLAMB_CONVERTS_HALVES
  store_converted<_MM_FROUND_TO_ZERO>(as_real(moved), to);
#else
  store_bits((((moved & u32x16(0x7FFFFFFFU)) - u32x16(0x38000000U)) >> 13) | ((moved >> 16) & u32x16(0x8000U)), to);
#endif
}
template <class Floats>
SLAMB_ALWAYS_INLINE void store_halves_by_chance(const Floats& x, const u32x16& draw, half* to, int count) {
  store_bits(stochastic_half_bits(x, draw), to, count);
}

/// Stores to the nearest numbers of sixteen bits, as IEEE 754 defines.
template <class Floats, class... Count>
SLAMB_ALWAYS_INLINE void store_nearest(const Floats& x, void* array, element_type type, std::size_t i, Count... count) {
  if (type == element_type::bfloat16)
    store_bits(quick_nearest_bfloat16_bits(x), static_cast<bfloat16*>(array) + i, count...);
  else
    store_halves(x, static_cast<half*>(array) + i, count...);
}

/// Stores to one of the two nearest numbers of sixteen bits, by chance.
template <class Floats, class... Count>
SLAMB_ALWAYS_INLINE void store_by_chance(const Floats& x, const u32x16& draw, void* array, element_type type,
                                         std::size_t i, Count... count) {
  if (type == element_type::bfloat16)
    store_bits(quick_stochastic_bfloat16_bits(x, draw), static_cast<bfloat16*>(array) + i, count...);
  else
    store_halves_by_chance(x, draw, static_cast<half*>(array) + i, count...);
}

#undef SLAMB_CONVERTS_HALVES

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
