// The sums and maxima of a tile, sixteen elements at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "slamb/backend/host/detail/positions.hpp"
#include "slamb/backend/host/detail/simd.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "slamb finds overflowed gradients by NaN and infinity: compile without -ffast-math and -ffinite-math-only"
#endif

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// The sums and maxima of one tile, and the result of its checks.
template <int Count, int Maxima = 0>
struct tile_sums {
  double_sum sum[static_cast<std::size_t>(Count == 0 ? 1 : Count)];
  f32x16 highest[static_cast<std::size_t>(Maxima == 0 ? 1 : Maxima)] = {};
  lane_mask usable = all_of_lanes();  // lanes in which all squares so far are below the largest float

  SLAMB_ALWAYS_INLINE void add(int index, const f32x16& x) { sum[index].add(x); }
  SLAMB_ALWAYS_INLINE void add_square(int index, const f32x16& x) { sum[index].add_square(x); }
  SLAMB_ALWAYS_INLINE void add_square_of(const lane_mask& some, int index, const f32x16& x) {
    add_square(index, select(some, x, f32x16(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const f32x16& x) { highest[index] = maximum(highest[index], x); }
  SLAMB_ALWAYS_INLINE void check_finite(const f32x16& x) {
    usable = usable & (x * x < f32x16(std::numeric_limits<float>::max()));
  }

  /// Begins another tile; checks go on.
  SLAMB_ALWAYS_INLINE void restart() {
    for (double_sum& one : sum) one = {};
    for (f32x16& one : highest) one = f32x16(0.0F);
  }

  /// Copies register by register. Compilers keep sums that are copied at once in memory.
  SLAMB_ALWAYS_INLINE void copy_to(tile_sums& to) const {
    for (int k = 0; k < Count; ++k)
      for (std::size_t i = 0; i < std::size(sum[k].part); ++i) to.sum[k].part[i] = sum[k].part[i];
    for (int k = 0; k < Maxima; ++k)
      for (int i = 0; i < native::parts; ++i) to.highest[k].part[i] = highest[k].part[i];
    for (int i = 0; i < native::parts; ++i) to.usable.part[i] = usable.part[i];
  }

  double total(int index) const { return sum[index].total(); }
  double largest(int index) const {
    float lane[lanes];
    highest[index].store(lane);
    return *std::max_element(lane, lane + lanes);
  }
};

/// True if all checked values are finite.
template <int Count, int Maxima>
bool is_usable(const tile_sums<Count, Maxima>& sums) {
  std::int32_t lane[lanes];
  std::memcpy(lane, sums.usable.part, sizeof(lane));
  return std::all_of(lane, lane + lanes, [](std::int32_t x) { return x != 0; });
}

/// Adds to the sums of a tile only the lanes in `counts`. Checks all lanes.
template <class Sums>
struct masked_tile_sums {
  Sums& all;
  lane_mask counts;

  SLAMB_ALWAYS_INLINE void add(int index, const f32x16& x) { all.add(index, select(counts, x, f32x16(0.0F))); }
  SLAMB_ALWAYS_INLINE void add_square(int index, const f32x16& x) { all.add_square_of(counts, index, x); }
  SLAMB_ALWAYS_INLINE void add_square_of(const lane_mask& some, int index, const f32x16& x) {
    all.add_square_of(counts & some, index, x);
  }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const f32x16& x) {
    all.take_maximum(index, select(counts, x, f32x16(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void check_finite(const f32x16& x) { all.check_finite(x); }
};

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
