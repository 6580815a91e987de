// Moving the lanes that a mask selects between a vector and a contiguous payload.
#pragma once

#include <bit>
#include <cstdint>

#include "slamb/backend/host/detail/simd.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

inline constexpr std::uint32_t all_lanes = (1U << lanes) - 1U;

/// The number of lanes in `bits`; in line even where the processor has no instruction for it.
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

/// Writes the lanes of `x` whose bit is set to `to`, one after another; nothing beyond them is touched.
SLAMB_ALWAYS_INLINE void pack(std::uint32_t bits, const floats& x, float* to) {
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

/// Reads values one after another into the lanes whose bit is set, and 0 into the others.
SLAMB_ALWAYS_INLINE floats unpack(std::uint32_t bits, const float* from) {
  if (bits == all_lanes) return floats::load(from);
#if defined(__AVX512F__)
  const auto count = static_cast<__mmask16>((1U << count_of(bits)) - 1U);
  const auto packed = _mm512_maskz_loadu_ps(count, from);
  floats x;
  x.part[0] = reinterpret_cast<native::floats>(_mm512_maskz_expand_ps(static_cast<__mmask16>(bits), packed));
  return x;
#else
  if (bits == 0) return floats(0.0F);
  alignas(SLAMB_SIMD_BYTES) float lane[lanes] = {};
  for (; bits != 0; bits &= bits - 1) lane[std::countr_zero(bits)] = *from++;
  return floats::load(lane);
#endif
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
