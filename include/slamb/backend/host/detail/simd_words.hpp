// The integers that belong to `f32x16`: sixteen unsigned 32-bit integers that behave as one.
#pragma once

#include <cstdint>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/core/config.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

namespace native {

typedef std::uint32_t words __attribute__((vector_size(SLAMB_SIMD_BYTES)));

// Shifts all lanes by one count. SSE2 needs the intrinsic; for other instruction sets the compiler finds the instruction.
SLAMB_ALWAYS_INLINE words shifted_left(words x, int count) {
#if defined(__SSE2__) && !defined(__AVX2__)
  return reinterpret_cast<words>(_mm_slli_epi32(reinterpret_cast<__m128i>(x), count));
#else
  return x << (words{} + static_cast<std::uint32_t>(count));
#endif
}

SLAMB_ALWAYS_INLINE words shifted_right(words x, int count) {
#if defined(__SSE2__) && !defined(__AVX2__)
  return reinterpret_cast<words>(_mm_srli_epi32(reinterpret_cast<__m128i>(x), count));
#else
  return x >> (words{} + static_cast<std::uint32_t>(count));
#endif
}

SLAMB_ALWAYS_INLINE words truncated(floats x) {
#if defined(__AVX512F__)
  return reinterpret_cast<words>(_mm512_maskz_cvttps_epi32(0xFFFF, reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<words>(_mm256_cvttps_epi32(reinterpret_cast<__m256>(x)));
#elif defined(__SSE2__)
  return reinterpret_cast<words>(_mm_cvttps_epi32(reinterpret_cast<__m128>(x)));
#else
  words result{};
  for (int i = 0; i < width; ++i) result[i] = static_cast<std::uint32_t>(static_cast<std::int32_t>(x[i]));
  return result;
#endif
}

// table[i] of each lane; i is below 8.
SLAMB_ALWAYS_INLINE floats one_of_eight(words i, const float (&table)[8]) {
#if defined(__AVX512F__)
  const __m512 all = _mm512_maskz_loadu_ps(0xFF, table);
  return reinterpret_cast<floats>(_mm512_maskz_permutexvar_ps(0xFFFF, reinterpret_cast<__m512i>(i), all));
#elif defined(__AVX2__)
  return reinterpret_cast<floats>(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), reinterpret_cast<__m256i>(i)));
#else
  floats result{};
  for (int lane = 0; lane < width; ++lane) result[lane] = table[i[lane]];
  return result;
#endif
}

SLAMB_ALWAYS_INLINE floats converted(words x) {
#if defined(__AVX512F__)
  return reinterpret_cast<floats>(_mm512_maskz_cvtepi32_ps(0xFFFF, reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<floats>(_mm256_cvtepi32_ps(reinterpret_cast<__m256i>(x)));
#elif defined(__SSE2__)
  return reinterpret_cast<floats>(_mm_cvtepi32_ps(reinterpret_cast<__m128i>(x)));
#else
  floats result{};
  for (int i = 0; i < width; ++i) result[i] = static_cast<float>(static_cast<std::int32_t>(x[i]));
  return result;
#endif
}

}  // namespace native

/// Sixteen unsigned integers. All operators work lane by lane, modulo 2^32.
struct u32x16 {
  native::words part[native::parts];

  u32x16() = default;
  SLAMB_ALWAYS_INLINE u32x16(std::uint32_t value) {  // NOLINT(google-explicit-constructor): as for floats
    part[0] = native::words{} + value;
    for (int i = 1; i < native::parts; ++i) part[i] = part[0];
  }

  static SLAMB_ALWAYS_INLINE u32x16 load(const std::uint32_t* from) {
    u32x16 x;
    native::load_parts(x.part, from);
    return x;
  }
  SLAMB_ALWAYS_INLINE void store(std::uint32_t* to) const { native::store_parts(part, to); }
};

struct both {
  SLAMB_ALWAYS_INLINE native::words operator()(native::words a, native::words b) const { return a & b; }
};
struct either {
  SLAMB_ALWAYS_INLINE native::words operator()(native::words a, native::words b) const { return a | b; }
};
struct differing {
  SLAMB_ALWAYS_INLINE native::words operator()(native::words a, native::words b) const { return a ^ b; }
};
struct word_less {
  SLAMB_ALWAYS_INLINE native::ints operator()(native::words a, native::words b) const {
    return reinterpret_cast<native::ints>(a < b);
  }
};
struct word_equal {
  SLAMB_ALWAYS_INLINE native::ints operator()(native::words a, native::words b) const {
    return reinterpret_cast<native::ints>(a == b);
  }
};
struct left_by {
  int count;
  SLAMB_ALWAYS_INLINE native::words operator()(native::words a) const { return native::shifted_left(a, count); }
};
struct right_by {
  int count;
  SLAMB_ALWAYS_INLINE native::words operator()(native::words a) const { return native::shifted_right(a, count); }
};
struct chosen_word {
  SLAMB_ALWAYS_INLINE native::words operator()(native::ints mask, native::words yes, native::words no) const {
    return mask ? yes : no;
  }
};
struct reinterpreted {
  SLAMB_ALWAYS_INLINE native::words operator()(native::floats x) const { return reinterpret_cast<native::words>(x); }
  SLAMB_ALWAYS_INLINE native::floats operator()(native::words x) const { return reinterpret_cast<native::floats>(x); }
};
struct converting {
  SLAMB_ALWAYS_INLINE native::words operator()(native::floats x) const { return native::truncated(x); }
  SLAMB_ALWAYS_INLINE native::floats operator()(native::words x) const { return native::converted(x); }
};

SLAMB_ALWAYS_INLINE u32x16 operator+(const u32x16& a, const u32x16& b) { return lanewise<u32x16>(plus{}, a, b); }
SLAMB_ALWAYS_INLINE u32x16 operator-(const u32x16& a, const u32x16& b) { return lanewise<u32x16>(minus{}, a, b); }
SLAMB_ALWAYS_INLINE u32x16 operator&(const u32x16& a, const u32x16& b) { return lanewise<u32x16>(both{}, a, b); }
SLAMB_ALWAYS_INLINE u32x16 operator|(const u32x16& a, const u32x16& b) { return lanewise<u32x16>(either{}, a, b); }
SLAMB_ALWAYS_INLINE u32x16 operator^(const u32x16& a, const u32x16& b) { return lanewise<u32x16>(differing{}, a, b); }
/// Shifts by 0 … 31 bits.
SLAMB_ALWAYS_INLINE u32x16 operator<<(const u32x16& a, int count) { return lanewise<u32x16>(left_by{count}, a); }
SLAMB_ALWAYS_INLINE u32x16 operator>>(const u32x16& a, int count) { return lanewise<u32x16>(right_by{count}, a); }
SLAMB_ALWAYS_INLINE lane_mask operator<(const u32x16& a, const u32x16& b) {
  return lanewise<lane_mask>(word_less{}, a, b);
}
SLAMB_ALWAYS_INLINE lane_mask operator==(const u32x16& a, const u32x16& b) {
  return lanewise<lane_mask>(word_equal{}, a, b);
}

// Element functions find these by argument-dependent lookup; core/real.hpp describes them.
SLAMB_ALWAYS_INLINE u32x16 select(const lane_mask& mask, const u32x16& yes, const u32x16& no) {
  return lanewise<u32x16>(chosen_word{}, mask, yes, no);
}
SLAMB_ALWAYS_INLINE u32x16 as_word(const f32x16& x) { return lanewise<u32x16>(reinterpreted{}, x); }
SLAMB_ALWAYS_INLINE f32x16 as_real(const u32x16& x) { return lanewise<f32x16>(reinterpreted{}, x); }
SLAMB_ALWAYS_INLINE u32x16 to_word(const f32x16& x) { return lanewise<u32x16>(converting{}, x); }
SLAMB_ALWAYS_INLINE f32x16 to_real(const u32x16& x) { return lanewise<f32x16>(converting{}, x); }
template <class Table>
SLAMB_ALWAYS_INLINE f32x16 one_of_eight(const u32x16& i, Table /*table*/) {
  static constexpr auto all = Table::all();
  return lanewise<f32x16>([](native::words own) { return native::one_of_eight(own, all.of); }, i);
}
SLAMB_ALWAYS_INLINE f32x16 absolute(const f32x16& x) { return as_real(as_word(x) & u32x16(0x7FFFFFFFU)); }

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
