// One tile of one pass, sixteen elements at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "slamb/backend/host/detail/simd.hpp"
#include "slamb/detail/pass/element.hpp"
#include "slamb/detail/pass/pass.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "slamb finds overflowed gradients by NaN and infinity: compile without -ffast-math and -ffinite-math-only"
#endif

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// The sums and largest values of one tile, and whether all values that were checked are usable.
template <int Count, int Maxima = 0>
struct tile_sums {
  double_sum sum[static_cast<std::size_t>(Count == 0 ? 1 : Count)];
  floats highest[static_cast<std::size_t>(Maxima == 0 ? 1 : Maxima)] = {};
  lane_mask usable = all_of_lanes();  // where the square of every value so far was below the largest float

  SLAMB_ALWAYS_INLINE void add_square(int index, const floats& x) { sum[index].add_square(x); }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const floats& x) { highest[index] = maximum(highest[index], x); }
  SLAMB_ALWAYS_INLINE void check_finite(const floats& x) {
    usable = usable & (x * x < floats(std::numeric_limits<float>::max()));
  }

  void write(double* results) const {
    for (int i = 0; i < Count; ++i) results[i] = sum[i].total();
    for (int i = 0; i < Maxima; ++i) {
      float lane[lanes];
      highest[i].store(lane);
      results[Count + i] = *std::max_element(lane, lane + lanes);
    }
  }

  bool all_finite() const {
    std::int32_t lane[lanes];
    std::memcpy(lane, usable.part, sizeof(lane));
    return std::all_of(lane, lane + lanes, [](std::int32_t x) { return x != 0; });
  }
};

/// The same, where some lanes do not count.
template <int Count, int Maxima = 0>
struct masked_tile_sums {
  tile_sums<Count, Maxima>& all;
  lane_mask counts;

  SLAMB_ALWAYS_INLINE void add_square(int index, const floats& x) {
    all.add_square(index, select(counts, x, floats(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void take_maximum(int index, const floats& x) {
    all.take_maximum(index, select(counts, x, floats(0.0F)));
  }
  SLAMB_ALWAYS_INLINE void check_finite(const floats& x) { all.check_finite(x); }
};

/// The same, by pass.
template <class Pass>
using sums_of = tile_sums<Pass::sums, maxima_of<Pass>()>;
template <class Pass>
using masked_sums_of = masked_tile_sums<Pass::sums, maxima_of<Pass>()>;

/// How the arrays of one tile are read and written, sixteen elements at a time.
template <class List>
struct tile_arrays : tile_pointers<List> {
  using tile_pointers<List>::tile_pointers;

  // Where[…] is nothing, or the number of lanes in use.
  template <class Element, class... Arrays, class... Where>
  SLAMB_ALWAYS_INLINE void load(arrays<Arrays...> /*some*/, [[maybe_unused]] Element& e, [[maybe_unused]] std::size_t i,
                                [[maybe_unused]] Where... where) const {
    (load_one<Arrays>(e, i, where...), ...);
  }
  template <class Element, class... Arrays, class... Where>
  SLAMB_ALWAYS_INLINE void store(arrays<Arrays...> /*some*/, [[maybe_unused]] const Element& e,
                                 [[maybe_unused]] std::size_t i, [[maybe_unused]] Where... where) const {
    static_assert((!std::is_same_v<Arrays, array::gradient> && ...),
                  "slamb: a pass must not write gradients: they are the user's");
    static_assert((!std::is_void_v<typename Arrays::stored> && ...),
                  "slamb: a pass cannot write positions: they lie in no memory");
    (value_of<Arrays, floats>(e).store(value_of<Arrays, typename Arrays::stored*>(*this) + i, where...), ...);
  }

 private:
  static constexpr float numbers_of_lanes[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  template <class Array, class Element, class... Where>
  SLAMB_ALWAYS_INLINE void load_one(Element& e, std::size_t i, Where... where) const {
    if constexpr (std::is_same_v<Array, array::position>)
      e.position = floats(static_cast<float>(this->first_position + i)) + floats::load(numbers_of_lanes);
    else
      value_of<Array, floats>(e) = floats::load(value_of<Array, typename Array::stored*>(*this) + i, where...);
  }
};

/// The same, of a pass.
template <class Pass>
using tile_arrays_of = tile_arrays<accessed_by<Pass>>;

/// Runs `pass` over `count` elements of `at`, all of one tensor, taking sums in the order of the elements.
template <class Pass, class Constants, class Arrays>
SLAMB_FLATTEN void run_elements(const Pass& pass, const Constants& constants, const Arrays& at, std::size_t count,
                                sums_of<Pass>& sums) {
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    element_of<Pass, floats> e;
    at.load(typename Pass::reads(), e, i);
    pass(e, constants, sums);
    at.store(typename Pass::writes(), e, i);
  }
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    masked_sums_of<Pass> rest_sums{sums, mask_of((1U << static_cast<unsigned>(rest)) - 1U)};
    element_of<Pass, floats> e;
    at.load(typename Pass::reads(), e, i, rest);
    pass(e, constants, rest_sums);
    at.store(typename Pass::writes(), e, i, rest);
  }
}

/// Runs `pass` over a tile; what it sums becomes `sums` [results_of<Pass>()]. Returns whether all that it checked was finite.
template <class Pass, class View>
bool run_tile(const Pass& pass, const View& view, const tile& t, double* sums) {
  sums_of<Pass> tile_sum;
  run_elements(pass, pass.constants(t.segment), tile_arrays_of<Pass>(view, view.segments[t.segment], t), t.count,
               tile_sum);
  tile_sum.write(sums);
  return tile_sum.all_finite();
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
