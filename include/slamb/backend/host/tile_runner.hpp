// One tile of one pass, sixteen elements at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/backend/host/simd.hpp"
#include "slamb/core/element.hpp"
#include "slamb/core/pass.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "slamb finds overflowed gradients by NaN and infinity: compile without -ffast-math and -ffinite-math-only"
#endif

namespace slamb::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// The sums of one tile, in double precision, and whether all values that were checked are usable.
template <int Count>
struct tile_sums {
  double_sum sum[Count == 0 ? 1 : Count];
  floats poison{0.0F};  // not 0 once a value was seen whose square is not below the largest float

  SLAMB_ALWAYS_INLINE void add_square(int index, const floats& x) { sum[index].add_square(x); }
  SLAMB_ALWAYS_INLINE void check_finite(const floats& x) {
    poison = select(x * x < floats(std::numeric_limits<float>::max()), poison, floats(1.0F));
  }

  bool all_finite() const {
    float lane[lanes];
    poison.store(lane);
    return std::all_of(lane, lane + lanes, [](float x) { return x == 0.0F; });
  }
};

/// The same, where some lanes do not count.
template <int Count>
struct masked_tile_sums {
  tile_sums<Count>& all;
  lane_mask counts;

  SLAMB_ALWAYS_INLINE void add_square(int index, const floats& x) {
    all.add_square(index, select(counts, x, floats(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void check_finite(const floats& x) { all.check_finite(x); }
};

/// The arrays of one tile, each from its first element.
struct tile_arrays {
  float* parameter;
  const float* gradient;
  float* momentum;
  float* variance;
  float* exchanged;

  tile_arrays(float* p, float* m, float* v)
      : parameter(p), gradient(nullptr), momentum(m), variance(v), exchanged(nullptr) {}

  tile_arrays(const model_view& view, const segment& s, const tile& t)
      : parameter(s.parameter + t.first),
        gradient(s.gradient + t.first),
        momentum(view.momentum == nullptr ? nullptr : view.momentum + s.state + t.first),
        variance(view.variance == nullptr ? nullptr : view.variance + s.state + t.first),
        exchanged(view.exchanged == nullptr ? nullptr : view.exchanged + (s.first + t.first - view.exchanged_first)) {
    if (view.gradient_is_exchanged) gradient = exchanged;
  }

  // Where[…] is nothing, or the number of lanes in use.
  template <unsigned Streams, class... Where>
  SLAMB_ALWAYS_INLINE void load(element<floats>& e, std::size_t i, Where... where) const {
    if constexpr ((Streams & stream::parameter) != 0) e.parameter = floats::load(parameter + i, where...);
    if constexpr ((Streams & stream::gradient) != 0) e.gradient = floats::load(gradient + i, where...);
    if constexpr ((Streams & stream::momentum) != 0) e.momentum = floats::load(momentum + i, where...);
    if constexpr ((Streams & stream::variance) != 0) e.variance = floats::load(variance + i, where...);
    if constexpr ((Streams & stream::exchanged) != 0) e.exchanged = floats::load(exchanged + i, where...);
  }

  template <unsigned Streams, class... Where>
  SLAMB_ALWAYS_INLINE void store(const element<floats>& e, std::size_t i, Where... where) const {
    if constexpr ((Streams & stream::parameter) != 0) e.parameter.store(parameter + i, where...);
    if constexpr ((Streams & stream::momentum) != 0) e.momentum.store(momentum + i, where...);
    if constexpr ((Streams & stream::variance) != 0) e.variance.store(variance + i, where...);
    if constexpr ((Streams & stream::exchanged) != 0) e.exchanged.store(exchanged + i, where...);
  }
};

/// Runs `pass` over `count` elements of `at`, all of one tensor, taking sums in the order of the elements.
template <class Pass, class Constants>
SLAMB_FLATTEN void run_elements(const Pass& pass, const Constants& constants, const tile_arrays& at, std::size_t count,
                                tile_sums<Pass::sums>& sums) {
  static_assert((Pass::writes & stream::gradient) == 0, "slamb: a pass must not write gradients: they are the user's");
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    element<floats> e;
    at.template load<Pass::reads>(e, i);
    pass(e, constants, sums);
    at.template store<Pass::writes>(e, i);
  }
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    masked_tile_sums<Pass::sums> rest_sums{sums, mask_of((1U << static_cast<unsigned>(rest)) - 1U)};
    element<floats> e;
    at.template load<Pass::reads>(e, i, rest);
    pass(e, constants, rest_sums);
    at.template store<Pass::writes>(e, i, rest);
  }
}

/// Runs `pass` over a tile; its sums become `sums` [Pass::sums]. Returns whether all that it checked was finite.
template <class Pass>
bool run_tile(const Pass& pass, const model_view& view, const tile& t, double* sums) {
  tile_sums<Pass::sums> tile_sum;
  run_elements(pass, pass.constants(t.segment), tile_arrays(view, view.segments[t.segment], t), t.count, tile_sum);
  for (int i = 0; i < Pass::sums; ++i) sums[i] = tile_sum.sum[i].total();
  return tile_sum.all_finite();
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::host
