// The kernels of a pass. Each block processes one tile after another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/lanes.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_windows.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail::cuda {

/// The sums and maxima that a pass takes over the elements of one thread.
template <class Pass>
using sums_of = thread_sums<Pass::sums, maxima_of<Pass>()>;

/// Runs `pass` over the groups of a thread. All are of one tensor.
template <class Pass, class Constants, class Arrays, class Groups>
SLAMB_ELEMENT void run_elements(const Pass& pass, const Constants& constants, const Arrays& at, const Groups& groups,
                                sums_of<Pass>& sums) {
  groups.visit([&]<class At>(At here) {
    element_of<Pass, typename At::real> e;
    hide(e);
    at.load(typename Pass::reads(), e, here);
    apply(pass, e, constants, sums);
    at.store(typename Pass::writes(), e, here);
  });
}

/// total [Sums + Maxima] ← the sums over all threads of the block, then the maxima over them.
template <int Sums, int Maxima, class Block, class Threads, std::size_t Count>
SLAMB_HOST_DEVICE void add_threads(Block& block, const Threads& of_thread, double (&total)[Count]) {
  static_assert(Count == Sums + Maxima);
  if constexpr (Sums > 0) {
    double all[Sums];
    block.sums(
        [&](unsigned thread, double(&own)[Sums]) {
          for (int k = 0; k < Sums; ++k) own[k] = of_thread[thread].sum[k];
        },
        all);
    for (int k = 0; k < Sums; ++k) total[k] = all[k];
  }
  for (int k = 0; k < Maxima; ++k)
    total[Sums + k] = static_cast<double>(block.maximum([&](unsigned thread) { return of_thread[thread].highest[k]; }));
}

/// Sets *not_finite to 1 if any thread of the block has checked a value that is not finite.
///
/// @param not_finite  may be null
template <class Block, class Sums>
SLAMB_HOST_DEVICE void note_usable(Block& block, const Sums& sums, std::uint32_t* not_finite) {
  if (not_finite == nullptr) return;
  if (block.any([&](unsigned thread) { return !sums[thread].usable; })) block.first([&] { *not_finite = 1; });
}

// Facts of a pass as variables, because device code cannot call functions of the host, not even at compile time.
template <class Pass>
inline constexpr bool follows_gradient_v = follows_gradient<Pass>();
template <class Pass>
inline constexpr int results_v = results_of<Pass>();

/// True if the pass leaves out this tensor.
template <class Pass>
SLAMB_HOST_DEVICE bool leaves_out(const segment& s) {
  return follows_gradient_v<Pass> && !s.has_gradient;
}

/// Does what a pass does for a tensor that it leaves out: sums of 0, and an exchange buffer of 0.
template <class Pass, class Block, class View>
SLAMB_HOST_DEVICE void leave_out(Block& block, const View& view, const segment& s, const tile& t, double* results) {
  if constexpr (results_v<Pass> != 0) {
    if (results != nullptr)
      block.first([&] {
        for (int k = 0; k < results_v<Pass>; ++k) results[k] = 0.0;
      });
  }
  if constexpr (writes_of<Pass>::type::template has<array::exchanged>) {
    float* const first = view.exchanged + (s.first + t.first - view.exchanged_first);
    block.each([&](unsigned thread) {
      for (std::uint32_t i = thread; i < t.count; i += Block::threads) first[i] = 0.0F;
    });
  }
}

/// Runs a pass over a range of tiles.
template <class Pass, class Precision = single_precision>
struct pass_kernel {
  static constexpr unsigned threads = 512;
  static constexpr int results = results_of<Pass>();

  Pass pass;
  view_of<Pass, Precision> view;
  tile_range tiles;
  double* sums = nullptr;               ///< [all tiles][results] each tile's sums, then its maxima
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value that the pass checked is not finite; may be null

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    typename Block::template registers<sums_of<Pass>> mine;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      double* const of_tile = sums == nullptr ? nullptr : sums + i * static_cast<std::size_t>(results);
      if (leaves_out<Pass>(s)) {
        leave_out<Pass>(block, view, s, t, of_tile);
        continue;
      }
      const tile_arrays_of<Pass, Precision> at(view, s, t, i);
      const auto constants = pass.constants(t.segment);
      for_each_window<typename Pass::writes, Precision>(
          block, at, 0, t.count, [&](unsigned thread, const auto& arrays, const auto& groups, bool begins) {
            sums_of<Pass> own;
            own.usable = mine[thread].usable;
            if (!begins) own = mine[thread];
            run_elements(pass, constants, arrays, groups, own);
            mine[thread] = own;
          });
      if constexpr (results > 0) {
        double total[results];
        add_threads<Pass::sums, results - Pass::sums>(block, mine, total);
        block.first([&] {
          for (int k = 0; k < results; ++k) of_tile[k] = total[k];
        });
      }
    }
    note_usable(block, mine, not_finite);
  }
};

/// Runs a pass over the payload of each tile, and adds its sums to `sums`.
template <class Pass>
struct packed_kernel {
  static_assert(Pass::writes::count == 0,
                "slamb: a pass over the payload must write no arrays; it can only compute sums");
  static_assert(maxima_of<Pass>() == 0, "slamb: a pass over the payload cannot compute maxima");
  static constexpr unsigned threads = 256;

  Pass pass;
  model_view view;
  payload_view payload;
  tile_range tiles;
  double* sums = nullptr;  ///< [all tiles][Pass::sums]

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    typename Block::template registers<sums_of<Pass>> mine;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const std::uint64_t first = payload.tile_offsets[i];
      const auto count = static_cast<std::uint32_t>(payload.tile_offsets[i + 1] - first);
      const tile_arrays<typename Pass::reads> planes(payload.plane, first);
      const auto constants = pass.constants(view.tiles[i].segment);
      block.each([&](unsigned thread) {
        sums_of<Pass> own;
        run_elements(pass, constants, planes, strided_groups<threads>{thread, count}, own);
        mine[thread] = own;
      });
      if constexpr (Pass::sums > 0) {
        double total[Pass::sums];
        add_threads<Pass::sums, 0>(block, mine, total);
        double* const to = sums + i * static_cast<std::size_t>(Pass::sums);
        block.first([&] {
          for (int k = 0; k < Pass::sums; ++k) to[k] += total[k];
        });
      }
    }
  }
};

}  // namespace slamb::detail::cuda
