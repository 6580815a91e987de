// The kernels of a pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

// Facts of a pass as variables, because device code cannot call functions of the host, not even at compile time.
template <class Pass>
inline constexpr bool follows_gradient_v = follows_gradient<Pass>();
template <class Pass>
inline constexpr int results_v = results_of<Pass>();
template <class Pass>
inline constexpr int maxima_v = maxima_of<Pass>();

/// True if the pass leaves out this tensor.
template <class Pass>
SLAMB_HOST_DEVICE bool leaves_out(const segment& s) {
  return follows_gradient_v<Pass> && !s.has_gradient;
}

/// Does what a pass does for a tensor that it leaves out: sums of 0, and an exchange buffer of 0.
template <class Pass, class Team, class View>
SLAMB_HOST_DEVICE void leave_out(Team& team, const View& view, const segment& s, const tile& t, double* results) {
  if constexpr (results_v<Pass> != 0) {
    if (results != nullptr)
      team.first([&] {
        for (int k = 0; k < results_v<Pass>; ++k) results[k] = 0.0;
      });
  }
  if constexpr (writes_of<Pass>::type::template has<array::exchanged>) {
    float* const first = view.exchanged + (s.first + t.first - view.exchanged_first);
    team.each([&](unsigned thread) {
      for (std::uint32_t i = thread; i < t.count; i += Team::threads) first[i] = 0.0F;
    });
  }
}

/// The results of a pass, of each thread of a team.
template <class Team, class Pass>
using sums_of = typename Team::template results<Pass::sums, maxima_v<Pass>>;

/// Runs a pass over a range of tiles.
template <class Pass, class Precision = single_precision>
struct run_pass {
  static_assert(!Pass::writes::template has<array::gradient>,
                "slamb: a pass must not write gradients, because they belong to the user");

  Pass pass;
  view_of<Pass, Precision> view;
  tile_range tiles;
  double* sums = nullptr;               ///< [all tiles][results] each tile's sums, then its maxima
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value that the pass checked is not finite; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    typename Team::template registers<sums_of<Team, Pass>> mine;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      double* const of_tile = sums == nullptr ? nullptr : sums + i * static_cast<std::size_t>(results_v<Pass>);
      if (leaves_out<Pass>(s)) {
        leave_out<Pass>(team, view, s, t, of_tile);
        continue;
      }
      const arrays_of_tile<Team, Pass, Precision> at(view, s, t, i);
      with_constants(team, pass, t.segment, [&](const auto& constants) SLAMB_INLINED {
        each_position_of<typename Pass::writes>(team, at, 0, t.count, mine, true,
                                                [&](const auto& arrays, auto here, auto& own) {
                                                  element_of<Pass, typename decltype(here)::real> e;
                                                  hide(e);
                                                  arrays.load(typename Pass::reads(), e, here);
                                                  apply(pass, e, constants, own);
                                                  arrays.store(typename Pass::writes(), e, here);
                                                });
      });
      if constexpr (results_v<Pass> != 0) write_results<Pass::sums, maxima_v<Pass>>(team, mine, of_tile);
    }
    note_usable(team, mine, not_finite);
  }
};
template <class Pass, class View, class... More>
run_pass(const Pass&, const View&, tile_range, More...) -> run_pass<Pass, typename View::precision>;

/// Runs a pass over the payload of each tile, and adds its sums to `sums`.
template <class Pass>
struct run_packed {
  static_assert(Pass::writes::count == 0,
                "slamb: a pass over the payload must write no arrays; it can only compute sums");
  static_assert(maxima_of<Pass>() == 0, "slamb: a pass over the payload cannot compute maxima");

  Pass pass;
  model_view view;
  payload_view payload;
  tile_range tiles;
  double* sums = nullptr;  ///< [all tiles][Pass::sums]

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    using planes_type =
        tile_arrays<typename Pass::reads, single_precision, typename Team::template draws<single_precision>>;
    typename Team::template registers<sums_of<Team, Pass>> mine;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const std::uint64_t first = payload.tile_offsets[i];
      const auto count = static_cast<std::uint32_t>(payload.tile_offsets[i + 1] - first);
      const planes_type planes(payload.plane, first);
      with_constants(team, pass, view.tiles[i].segment, [&](const auto& constants) SLAMB_INLINED {
        each_position(team, 0, count, mine, true, [&](auto here, auto& own) {
          element_of<Pass, typename decltype(here)::real> e;
          hide(e);
          planes.load(typename Pass::reads(), e, here);
          apply(pass, e, constants, own);
        });
      });
      if constexpr (Pass::sums > 0)
        add_results<Pass::sums>(team, mine, sums + i * static_cast<std::size_t>(Pass::sums));
    }
  }
};

}  // namespace slamb::detail
