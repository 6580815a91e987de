// The kernels that compute the offset of each tile's selected elements in the payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

/// Computes the offsets directly, for a selection with `selected_before`: the number of selected elements of a tensor before a
/// given one. A team computes the offsets of as many tiles as it has threads. The kernel does not read `skip`: a team sets it if
/// the payload is too large, and teams must not read memory that others write.
template <class Selection>
struct place_tiles_directly {
  static constexpr unsigned tiles_of_team = 256;

  model_view view;
  Selection selection;
  std::size_t tiles = 0;                  ///< of all tensors; at least one
  std::uint64_t* tile_offsets = nullptr;  ///< [tiles + 1] receives the offsets, then the payload's size
  std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max();  ///< elements that the payload may have
  std::uint32_t* too_many = nullptr;                                   ///< becomes 1 if it has more; may be null

  std::size_t work() const noexcept { return (tiles + tiles_of_team - 1) / tiles_of_team; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    static_assert(Team::threads == tiles_of_team);
    for (std::size_t first = team.index() * Team::threads; first < tiles; first += team.count() * Team::threads) {
      const tile begin = view.tiles[first];
      const double tensors_before = team.sum([&](unsigned thread) {  // exact: below 2^53
        double own = 0.0;
        for (std::uint32_t i = thread; i < begin.segment; i += Team::threads)
          own += static_cast<double>(before(i, view.segments[i].size));
        return own;
      });
      const std::uint64_t payload_before =
          static_cast<std::uint64_t>(tensors_before) + before(begin.segment, begin.first);
      typename Team::template registers<std::uint32_t> tiles_before;
      const std::uint32_t all = team.exclusive_sum(
          [&](unsigned thread) { return first + thread < tiles ? active(view.tiles[first + thread]) : 0U; },
          tiles_before);
      team.each([&](unsigned thread) {
        if (first + thread < tiles) tile_offsets[first + thread] = payload_before + tiles_before[thread];
      });
      if (tiles - first > Team::threads) continue;
      team.first([&] {
        tile_offsets[tiles] = payload_before + all;
        if (payload_before + all > capacity && too_many != nullptr) *too_many = 1;
      });
    }
  }

 private:
  // The number of selected elements of a tensor before element `index`.
  SLAMB_HOST_DEVICE std::uint64_t before(std::uint32_t tensor, std::uint64_t index) const {
    const segment& s = view.segments[tensor];
    return s.dense ? index : resolved(selection).selected_before(coordinate_of(s, tensor, index));
  }
  SLAMB_HOST_DEVICE std::uint32_t active(const tile& t) const {
    return static_cast<std::uint32_t>(before(t.segment, t.first + t.count) - before(t.segment, t.first));
  }
};

/// Counts the selected elements of each tile.
template <class Selection>
struct count_selected_elements {
  model_view view;
  Selection selection;
  std::size_t tiles = 0;                  ///< of all tensors
  std::uint64_t* tile_offsets = nullptr;  ///< [tiles + 1] receives the count of tile i at i + 1

  std::size_t work() const noexcept { return tiles; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = team.index(); i < tiles; i += team.count()) {
      const tile t = view.tiles[i];
      const std::uint64_t all = count_selected(team, resolved(selection), view.segments[t.segment], t);
      team.first([&] { tile_offsets[i + 1] = all; });
    }
  }
};

/// Turns the counts of all tiles into offsets, in one team.
struct add_up_counts {
  static constexpr bool is_small = true;

  std::size_t tiles = 0;
  /// [tiles + 1] from index 1 on the counts, each below 2^20; becomes the offsets, then the payload's size.
  std::uint64_t* tile_offsets = nullptr;
  const std::uint32_t* skip = nullptr;                                 ///< not 0: nothing is done; may be null
  std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max();  ///< elements that the payload may have
  std::uint32_t* too_many = nullptr;                                   ///< becomes 1 if it has more; may be null

  static std::size_t work() noexcept { return 1; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(skip) || team.index() != 0) return;
    std::uint64_t done = 0;  // elements of the tiles before
    for (std::size_t first = 0; first < tiles; first += Team::threads * of_thread) {
      typename Team::template registers<std::uint32_t> before;
      const std::uint32_t all = team.exclusive_sum(
          [&](unsigned thread) {
            std::uint64_t own = 0;
            for (std::size_t i = first + thread * of_thread; i < end_of(first, thread); ++i) own += tile_offsets[i + 1];
            return static_cast<std::uint32_t>(own);
          },
          before);
      team.each([&](unsigned thread) {
        std::uint64_t offset = done + before[thread];
        for (std::size_t i = first + thread * of_thread; i < end_of(first, thread); ++i) {
          offset += tile_offsets[i + 1];
          tile_offsets[i + 1] = offset;
        }
      });
      done += all;
    }
    team.first([&] {
      tile_offsets[0] = 0;
      if (done > capacity && too_many != nullptr) *too_many = 1;
    });
  }

 private:
  static constexpr std::size_t of_thread = 4;  // tiles; the tiles of all threads have less than 2^32 elements

  SLAMB_HOST_DEVICE std::size_t end_of(std::size_t first, unsigned thread) const {
    const std::size_t end = first + (thread + 1) * of_thread;
    return end < tiles ? end : tiles;
  }
};

/// Computes the offsets: `tile_offsets` [tiles + 1].
/// @param capacity  elements that the payload may have
/// @param too_many  becomes 1 if the payload has more; may be null
template <class Launcher, class Selection>
void place_tiles(const Launcher& on, model_view view, const Selection& selection, std::span<std::uint64_t> tile_offsets,
                 std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max(),
                 std::uint32_t* too_many = nullptr) {
  const std::size_t tiles = tile_offsets.size() - 1;
  if (tiles == 0) return;
  if constexpr (Launcher::is_synchronous) view.skip = nullptr;  // the size of the payload is read in any case
  if constexpr (capability::has_selected_before<resolved_t<Selection>> && !Launcher::is_synchronous) {
    on.launch(place_tiles_directly<Selection>{view, selection, tiles, tile_offsets.data(), capacity, too_many});
  } else {
    on.launch(count_selected_elements<Selection>{view, selection, tiles, tile_offsets.data()});
    on.launch(add_up_counts{tiles, tile_offsets.data(), view.skip, capacity, too_many});
  }
}

}  // namespace slamb::detail
