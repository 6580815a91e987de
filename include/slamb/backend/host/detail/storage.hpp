// Arrays of floats or bfloat16s, read and written as `floats` by one name. Those of bfloat16 are templates, for nvcc does not
// take functions of vectors and of devices in one, and sees into what is no template.
#pragma once

#include <concepts>
#include <cstddef>

#include "slamb/backend/host/detail/codes.hpp"
#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/config.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// The sixteen numbers at `from`, of any alignment.
SLAMB_ALWAYS_INLINE floats load_floats(const float* from) { return floats::load(from); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE floats load_floats(const T* from) {
#if defined(__SSE2__)
  return real_of_bfloat16_bits(load_codes<16>(reinterpret_cast<const std::byte*>(from)));
#else
  float all[lanes];
  for (int i = 0; i < lanes; ++i) all[i] = to_float(from[i]);
  return floats::load(all);
#endif
}

/// The first `count`, and 0 in the other lanes.
SLAMB_ALWAYS_INLINE floats load_floats(const float* from, int count) { return floats::load(from, count); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE floats load_floats(const T* from, int count) {
  bfloat16 all[lanes] = {};
  for (int i = 0; i < count; ++i) all[i] = from[i];
  return load_floats(all);
}

/// Writes sixteen numbers, each rounded to the nearest that the array can hold.
SLAMB_ALWAYS_INLINE void store_floats(const floats& x, float* to) { x.store(to); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE void store_floats(const floats& x, T* to) {
#if defined(__SSE2__)
  store_codes<16>(bfloat16_bits(x), reinterpret_cast<std::byte*>(to));
#else
  float all[lanes];
  x.store(all);
  for (int i = 0; i < lanes; ++i) to[i] = to_bfloat16(all[i]);
#endif
}

/// Writes the first `count`; nothing beyond them is touched.
SLAMB_ALWAYS_INLINE void store_floats(const floats& x, float* to, int count) { x.store(to, count); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE void store_floats(const floats& x, T* to, int count) {
  bfloat16 all[lanes];
  store_floats(x, all);
  for (int i = 0; i < count; ++i) to[i] = all[i];
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
