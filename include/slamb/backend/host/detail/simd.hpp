// Sixteen floats that behave as one: explicit SIMD with any compiler flags, and the same lanes on every processor.
//
// The number of lanes is fixed, for registers of any width. So sums have the same order and the same bits with SSE2, AVX2 and
// AVX-512. The namespace is named after the instruction set, so that translation units for different ones can be linked into one
// program.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "slamb/core/config.hpp"

// A build without AVX includes a smaller header, because immintrin.h takes a third of a second to compile.
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

/// The registers behind `f32x16`: their types, and the operations that have no operator.
namespace native {

inline constexpr int width = SLAMB_SIMD_BYTES / 4;  // floats in a register
inline constexpr int parts = lanes / width;

typedef float floats __attribute__((vector_size(SLAMB_SIMD_BYTES)));
typedef std::int32_t ints __attribute__((vector_size(SLAMB_SIMD_BYTES)));
typedef double doubles __attribute__((vector_size(SLAMB_SIMD_BYTES)));

// Copies register by register. Compilers would take one copy of all registers through the stack, in pieces of other sizes than a
// register, for which a processor has to wait.
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

// AVX-512 code uses masked intrinsics: the unmasked ones take an undefined operand, about which g++ 12 warns in the user's
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

SLAMB_ALWAYS_INLINE floats select(ints mask, floats yes, floats no) { return mask ? yes : no; }

// b < a ? b : a, and a < b ? b : a, as the instructions define them for NaN and for zeros of both signs.
SLAMB_ALWAYS_INLINE floats minimum(floats a, floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<floats>(
      _mm512_maskz_min_ps(0xFFFF, reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<floats>(_mm256_min_ps(reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(a)));
#elif defined(__SSE2__)
  return reinterpret_cast<floats>(_mm_min_ps(reinterpret_cast<__m128>(b), reinterpret_cast<__m128>(a)));
#else
  return select(b < a, b, a);
#endif
}
SLAMB_ALWAYS_INLINE floats maximum(floats a, floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<floats>(
      _mm512_maskz_max_ps(0xFFFF, reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<floats>(_mm256_max_ps(reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(a)));
#elif defined(__SSE2__)
  return reinterpret_cast<floats>(_mm_max_ps(reinterpret_cast<__m128>(b), reinterpret_cast<__m128>(a)));
#else
  return select(a < b, b, a);
#endif
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

/// True or false in each lane.
struct lane_mask {
  native::ints part[native::parts];
};

/// Sixteen floats. All operators work lane by lane.
struct f32x16 {
  native::floats part[native::parts];

  f32x16() = default;
  SLAMB_ALWAYS_INLINE f32x16(float value) {  // NOLINT(google-explicit-constructor): formulas say 2.0F * x
    part[0] = value - native::floats{};      // keeps the sign of -0.0F, which a sum would not
    for (int i = 1; i < native::parts; ++i) part[i] = part[0];
  }

  static SLAMB_ALWAYS_INLINE f32x16 load(const float* from) {
    f32x16 x;
    native::load_parts(x.part, from);
    return x;
  }
  SLAMB_ALWAYS_INLINE void store(float* to) const { native::store_parts(part, to); }

  /// The first `count` floats, and 0 in the other lanes.
  static SLAMB_ALWAYS_INLINE f32x16 load(const float* from, int count) {
    alignas(SLAMB_SIMD_BYTES) float all[lanes] = {};
    for (int i = 0; i < count; ++i) all[i] = from[i];
    return load(all);
  }
  SLAMB_ALWAYS_INLINE void store(float* to, int count) const {
    alignas(SLAMB_SIMD_BYTES) float all[lanes];
    store(all);
    for (int i = 0; i < count; ++i) to[i] = all[i];
  }
};

// Applies f to each register of the arguments. It has no loop, so that every optimisation level keeps values in registers.
template <class Result, class F, class... Arguments>
SLAMB_ALWAYS_INLINE Result lanewise(F f, const Arguments&... a) {
  Result r;
  r.part[0] = f(a.part[0]...);
  if constexpr (native::parts > 1) r.part[1] = f(a.part[1]...);
  if constexpr (native::parts > 2) {
    r.part[2] = f(a.part[2]...);
    r.part[3] = f(a.part[3]...);
  }
  return r;
}

struct plus {
  template <class T>
  SLAMB_ALWAYS_INLINE T operator()(T a, T b) const {
    return a + b;
  }
};
struct minus {
  template <class T>
  SLAMB_ALWAYS_INLINE T operator()(T a, T b) const {
    return a - b;
  }
};
// Rounds the product before it is used, so that the bits do not depend on a fused multiply-add.
struct times {
  SLAMB_ALWAYS_INLINE native::floats operator()(native::floats a, native::floats b) const {
    native::floats product = a * b;
    SLAMB_ROUND(product);
    return product;
  }
};
struct over {
  template <class T>
  SLAMB_ALWAYS_INLINE T operator()(T a, T b) const {
    return a / b;
  }
};
struct less {
  SLAMB_ALWAYS_INLINE native::ints operator()(native::floats a, native::floats b) const { return a < b; }
};
struct conjunction {
  SLAMB_ALWAYS_INLINE native::ints operator()(native::ints a, native::ints b) const { return a & b; }
};
struct inverse {
  SLAMB_ALWAYS_INLINE native::ints operator()(native::ints a) const { return ~a; }
};
struct chosen {
  SLAMB_ALWAYS_INLINE native::floats operator()(native::ints mask, native::floats yes, native::floats no) const {
    return native::select(mask, yes, no);
  }
};
struct lesser {
  SLAMB_ALWAYS_INLINE native::floats operator()(native::floats a, native::floats b) const {
    return native::minimum(a, b);
  }
};
struct greater {
  SLAMB_ALWAYS_INLINE native::floats operator()(native::floats a, native::floats b) const {
    return native::maximum(a, b);
  }
};
struct rooted {
  SLAMB_ALWAYS_INLINE native::floats operator()(native::floats x) const { return native::square_root(x); }
};

SLAMB_ALWAYS_INLINE f32x16 operator+(const f32x16& a, const f32x16& b) { return lanewise<f32x16>(plus{}, a, b); }
SLAMB_ALWAYS_INLINE f32x16 operator-(const f32x16& a, const f32x16& b) { return lanewise<f32x16>(minus{}, a, b); }
SLAMB_ALWAYS_INLINE f32x16 operator*(const f32x16& a, const f32x16& b) { return lanewise<f32x16>(times{}, a, b); }
SLAMB_ALWAYS_INLINE f32x16 operator/(const f32x16& a, const f32x16& b) { return lanewise<f32x16>(over{}, a, b); }
SLAMB_ALWAYS_INLINE f32x16 operator-(const f32x16& a) { return f32x16(-0.0F) - a; }
SLAMB_ALWAYS_INLINE lane_mask operator<(const f32x16& a, const f32x16& b) { return lanewise<lane_mask>(less{}, a, b); }
SLAMB_ALWAYS_INLINE lane_mask operator&(const lane_mask& a, const lane_mask& b) {
  return lanewise<lane_mask>(conjunction{}, a, b);
}
SLAMB_ALWAYS_INLINE lane_mask operator~(const lane_mask& a) { return lanewise<lane_mask>(inverse{}, a); }

// Element functions find these by argument-dependent lookup.
SLAMB_ALWAYS_INLINE f32x16 select(const lane_mask& mask, const f32x16& yes, const f32x16& no) {
  return lanewise<f32x16>(chosen{}, mask, yes, no);
}
SLAMB_ALWAYS_INLINE f32x16 square_root(const f32x16& x) { return lanewise<f32x16>(rooted{}, x); }
SLAMB_ALWAYS_INLINE f32x16 minimum(const f32x16& a, const f32x16& b) { return lanewise<f32x16>(lesser{}, a, b); }
SLAMB_ALWAYS_INLINE f32x16 maximum(const f32x16& a, const f32x16& b) { return lanewise<f32x16>(greater{}, a, b); }

inline constexpr std::int32_t bit_of_lane[lanes] = {1 << 0,  1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                                    1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                                    1 << 12, 1 << 13, 1 << 14, 1 << 15};

template <int Part>
SLAMB_ALWAYS_INLINE native::ints mask_part(std::uint32_t bits) {
  native::ints bit;
  std::memcpy(&bit, bit_of_lane + Part * native::width, sizeof(bit));
  const native::ints all = native::ints{} + static_cast<std::int32_t>(bits);
  return (all & bit) != 0;
}

/// The mask of all lanes.
SLAMB_ALWAYS_INLINE lane_mask all_of_lanes() {
  lane_mask mask;
  for (int i = 0; i < native::parts; ++i) mask.part[i] = ~native::ints{};
  return mask;
}

/// The mask of the lanes whose bit in `bits` is set (lane i: bit i).
SLAMB_ALWAYS_INLINE lane_mask mask_of(std::uint32_t bits) {
  lane_mask mask;
  mask.part[0] = mask_part<0>(bits);
  if constexpr (native::parts > 1) mask.part[1] = mask_part<1>(bits);
  if constexpr (native::parts > 2) {
    mask.part[2] = mask_part<2>(bits);
    mask.part[3] = mask_part<3>(bits);
  }
  return mask;
}

/// A sum of squares, or of values, in double precision and eight lanes. Lanes i and i + 8 of the floats are added first, and then
/// to lane i, so that sixteen floats lengthen the chain of dependent additions by one. The lanes are added at the end, in a fixed
/// order.
struct double_sum {
  static constexpr int sums = 8;
  static constexpr int width = native::width / 2;  // doubles in a register
  native::doubles part[sums / width] = {};

  SLAMB_ALWAYS_INLINE void add_square(const f32x16& x) { add_terms<squared>(x); }
  /// Adds the values themselves.
  SLAMB_ALWAYS_INLINE void add(const f32x16& x) { add_terms<itself>(x); }

  double total() const {
    double lane[sums];
    std::memcpy(lane, part, sizeof(lane));
    for (int half = sums / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
  }

 private:
  // The square of a float is exact in double precision: fused with a sum or not, it gives the same bits.
  struct squared {
    static SLAMB_ALWAYS_INLINE native::doubles term(native::doubles x) { return x * x; }
  };
  struct itself {
    static SLAMB_ALWAYS_INLINE native::doubles term(native::doubles x) { return x; }
  };

  template <class Of>
  SLAMB_ALWAYS_INLINE void add_terms(const f32x16& x) {
    if constexpr (native::parts == 1) {
      part[0] += Of::term(native::widen_low(x.part[0])) + Of::term(native::widen_high(x.part[0]));
    } else {
      add_pair<Of, 0>(x);
      if constexpr (native::parts > 2) add_pair<Of, 1>(x);
    }
  }
  template <class Of, int First>
  SLAMB_ALWAYS_INLINE void add_pair(const f32x16& x) {
    const native::floats& a = x.part[First];
    const native::floats& b = x.part[First + native::parts / 2];
    part[2 * First] += Of::term(native::widen_low(a)) + Of::term(native::widen_low(b));
    part[2 * First + 1] += Of::term(native::widen_high(a)) + Of::term(native::widen_high(b));
  }
};

inline constexpr std::uint32_t all_lanes = (1U << lanes) - 1U;

/// The number of bits set. Inlined even if the processor has no instruction for it.
SLAMB_ALWAYS_INLINE std::uint32_t count_of(std::uint32_t bits) {
#if defined(__POPCNT__)
  return static_cast<std::uint32_t>(std::popcount(bits));
#else
  if (bits == 0) return 0;
  if (bits == all_lanes) return lanes;
  std::uint32_t count = 0;
  for (; bits != 0; bits &= bits - 1) ++count;
  return count;
#endif
}

/// Writes the lanes of `x` whose bit is set, one after another, to `to`. Writes nothing else.
SLAMB_ALWAYS_INLINE void pack(std::uint32_t bits, const f32x16& x, float* to) {
  if (bits == all_lanes) {
    x.store(to);
    return;
  }
#if defined(__AVX512F__)
  const auto packed = _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), reinterpret_cast<__m512>(x.part[0]));
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1U << count_of(bits)) - 1U), packed);
#else
  if (bits == 0) return;
  alignas(SLAMB_SIMD_BYTES) float lane[lanes];
  x.store(lane);
  for (; bits != 0; bits &= bits - 1) *to++ = lane[std::countr_zero(bits)];
#endif
}

/// Reads consecutive values into the lanes whose bit is set. The other lanes become 0.
SLAMB_ALWAYS_INLINE f32x16 unpack(std::uint32_t bits, const float* from) {
  if (bits == all_lanes) return f32x16::load(from);
#if defined(__AVX512F__)
  const auto count = static_cast<__mmask16>((1U << count_of(bits)) - 1U);
  const auto packed = _mm512_maskz_loadu_ps(count, from);
  f32x16 x;
  x.part[0] = reinterpret_cast<native::floats>(_mm512_maskz_expand_ps(static_cast<__mmask16>(bits), packed));
  return x;
#else
  if (bits == 0) return f32x16(0.0F);
  alignas(SLAMB_SIMD_BYTES) float lane[lanes] = {};
  for (; bits != 0; bits &= bits - 1) lane[std::countr_zero(bits)] = *from++;
  return f32x16::load(lane);
#endif
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
