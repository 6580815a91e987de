// Reads and writes arrays of float or bfloat16 as `floats`, by the same function names. The functions for bfloat16 are templates,
// because nvcc compiles every other function, and takes no vectors in functions that are for the device too.
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

/// Loads sixteen numbers from `from`, of any alignment.
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

/// Loads `count` numbers. The other lanes become 0.
SLAMB_ALWAYS_INLINE floats load_floats(const float* from, int count) { return floats::load(from, count); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE floats load_floats(const T* from, int count) {
  bfloat16 all[lanes] = {};
  for (int i = 0; i < count; ++i) all[i] = from[i];
  return load_floats(all);
}

/// Stores sixteen numbers, each rounded to the nearest number of the array's type.
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

/// Stores the first `count` numbers and nothing else.
SLAMB_ALWAYS_INLINE void store_floats(const floats& x, float* to, int count) { x.store(to, count); }
template <std::same_as<bfloat16> T>
SLAMB_ALWAYS_INLINE void store_floats(const floats& x, T* to, int count) {
  bfloat16 all[lanes];
  store_floats(x, all);
  for (int i = 0; i < count; ++i) to[i] = all[i];
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
