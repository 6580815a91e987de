// Runs the element functions of passes on a group: on one lane after another.
//
// On all lanes at once they would need more registers. nvcc keeps the order of divisions and roots, whose rare cases are calls. So it
// would keep the intermediate values of all lanes at the same time.
#pragma once

#include <cstdint>
#include <cstring>

#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail::cuda {

// Lane j.

template <unsigned W>
SLAMB_ELEMENT reals<1> lane_of(const reals<W>& x, unsigned j) {
  return x.of[j];
}
template <unsigned W>
SLAMB_ELEMENT masks<1> lane_of(const masks<W>& mask, unsigned j) {
  return {mask.of[j]};
}
template <unsigned W>
SLAMB_ELEMENT selected_lanes<reals<1>, masks<1>> lane_of(const selected_lanes<reals<W>, masks<W>>& lanes, unsigned j) {
  return {lane_of(lanes.selected, j), lane_of(lanes.discount, j)};
}
template <unsigned W, class... Arrays>
SLAMB_ELEMENT element<reals<1>, arrays<Arrays...>> lane_of(const element<reals<W>, arrays<Arrays...>>& e, unsigned j) {
  element<reals<1>, arrays<Arrays...>> lane;
  ((value_of<Arrays, reals<1>>(lane) = lane_of(value_of<Arrays, reals<W>>(e), j)), ...);
  return lane;
}
template <unsigned W, class... Arrays>
SLAMB_ELEMENT void set_lane(element<reals<W>, arrays<Arrays...>>& e, unsigned j,
                            const element<reals<1>, arrays<Arrays...>>& lane) {
  ((value_of<Arrays, reals<W>>(e).of[j] = value_of<Arrays, reals<1>>(lane).of[0]), ...);
}

/// The sums of lane j: those of all, if there are no others.
template <class Sums>
SLAMB_ELEMENT Sums& sums_of_lane(Sums& sums, unsigned /*j*/) {
  return sums;
}
template <class Sums, unsigned W>
SLAMB_ELEMENT unsent_sums<Sums, masks<1>> sums_of_lane(unsent_sums<Sums, masks<W>>& sums, unsigned j) {
  return {sums.all, lane_of(sums.unsent, j)};
}

/// pass(e, constants, sums).
template <class Pass, unsigned W, class List, class Constants, class Sums>
SLAMB_ELEMENT void apply(const Pass& pass, element<reals<W>, List>& e, const Constants& constants, Sums& sums) {
  for (unsigned j = 0; j < W; ++j) {
    auto lane = lane_of(e, j);
    auto&& of_lane = sums_of_lane(sums, j);
    pass(lane, constants, of_lane);
    set_lane(e, j, lane);
  }
}
/// pass(e, lanes, constants, sums), for a sparse pass.
template <class Pass, unsigned W, class List, class Constants, class Sums>
SLAMB_ELEMENT void apply(const Pass& pass, element<reals<W>, List>& e, const selected_lanes<reals<W>, masks<W>>& lanes,
                         const Constants& constants, Sums& sums) {
  for (unsigned j = 0; j < W; ++j) {
    auto lane = lane_of(e, j);
    auto&& of_lane = sums_of_lane(sums, j);
    pass(lane, lane_of(lanes, j), constants, of_lane);
    set_lane(e, j, lane);
  }
}
/// pass.signal(e, constants, checks).
template <class Pass, unsigned W, class List, class Constants, class Checks>
SLAMB_ELEMENT reals<W> signal_of(const Pass& pass, const element<reals<W>, List>& e, const Constants& constants,
                                 Checks& checks) {
  reals<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = pass.signal(lane_of(e, j), constants, checks).of[0];
  return x;
}

/// The codes of a quantizer.
template <class Quantizer, unsigned W>
SLAMB_ELEMENT words<W> encoded(const Quantizer& quantizer, const reals<W>& x, float scale, const reals<W>& uniform) {
  words<W> code;
  for (unsigned j = 0; j < W; ++j)
    code.of[j] = quantizer.encode(lane_of(x, j), reals<1>(scale), lane_of(uniform, j)).of[0];
  return code;
}

/// In the emulator, makes all values of an element NaN, so that a pass that reads an array which it does not list in `reads` cannot
/// get a plausible value. On a device, does nothing.
template <unsigned W, class List>
SLAMB_ELEMENT void hide([[maybe_unused]] element<reals<W>, List>& e) {
#if !defined(SLAMB_ON_DEVICE)
  std::memset(static_cast<void*>(&e), 0xFF, sizeof(e));
#endif
}

}  // namespace slamb::detail::cuda
