// Where each tile's selected elements lie in the payload, found out on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/backend/cuda/selected_elements.hpp"
#include "slamb/backend/cuda/tile_access.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/core/pass.hpp"
#include "slamb/core/selected_pass.hpp"

namespace slamb::cuda {

/// Counts the selected elements of each tile: by `selected_before` where the selection has it, a thread a tile; else by
/// looking at each element, a block a tile.
template <class Selection>
struct count_selected_kernel {
  static constexpr unsigned threads = 256;
  static constexpr bool counts_at_once = has_selected_before<resolved_t<Selection>>;

  model_view view;
  Selection selection;
  std::size_t tiles = 0;                ///< of all tensors
  std::uint64_t* tile_first = nullptr;  ///< [tiles + 1] receives the count of tile i at i + 1

  /// Pieces to launch it for.
  std::size_t work() const noexcept { return counts_at_once ? (tiles + threads - 1) / threads : tiles; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_refused(view.refused)) return;
    if constexpr (counts_at_once) {
      for (std::size_t first = block.index() * threads; first < tiles; first += block.count() * threads)
        block.each([&](unsigned thread) {
          if (first + thread < tiles) tile_first[first + thread + 1] = counted(view.tiles[first + thread]);
        });
    } else {
      for (std::size_t i = block.index(); i < tiles; i += block.count()) {
        const tile t = view.tiles[i];
        typename Block::template registers<std::uint32_t> before;
        const std::uint32_t all = block.exclusive_sum([&](unsigned thread) { return seen(t, thread); }, before);
        block.first([&] { tile_first[i + 1] = all; });
      }
    }
  }

 private:
  SLAMB_HOST_DEVICE std::uint64_t counted(const tile& t) const {
    const segment& s = view.segments[t.segment];
    if (s.dense) return t.count;
    return resolved(selection).selected_before(coordinate_of(s, t.segment, t.first + t.count)) -
           resolved(selection).selected_before(coordinate_of(s, t.segment, t.first));
  }

  // Of a thread's elements.
  SLAMB_HOST_DEVICE std::uint32_t seen(const tile& t, unsigned thread) const {
    const segment& s = view.segments[t.segment];
    if (s.dense) return thread == 0 ? t.count : 0U;
    constexpr std::uint32_t piece = 16;
    std::uint32_t selected = 0;
    for (std::uint32_t first = thread * piece; first < t.count; first += threads * piece) {
      const std::uint32_t count = t.count - first < piece ? t.count - first : piece;
      for_each_run(resolved(selection), coordinate_of(s, t.segment, t.first + first), count,
                   [&](std::uint64_t /*begin*/, std::uint64_t length, std::uint32_t age) {
                     if (age == 0) selected += static_cast<std::uint32_t>(length);
                   });
    }
    return selected;
  }
};

/// Makes places of counts: one block, for any number of tiles.
struct place_tiles_kernel {
  static constexpr unsigned threads = 1024;

  std::size_t tiles = 0;
  std::uint64_t* tile_first =
      nullptr;  ///< [tiles + 1] counts, each below 2^20, from 1 on; becomes places, the size last
  const std::uint32_t* refused = nullptr;                          ///< not 0: nothing is done; may be null
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();  ///< elements that the payload may have
  std::uint32_t* too_many = nullptr;                               ///< becomes 1 if it has more; may be null

  /// Pieces to launch it for.
  static std::size_t work() noexcept { return 1; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_refused(refused) || block.index() != 0) return;
    std::uint64_t done = 0;  // elements of the tiles before
    for (std::size_t first = 0; first < tiles; first += threads * of_thread) {
      typename Block::template registers<std::uint32_t> before;
      const std::uint32_t all = block.exclusive_sum(
          [&](unsigned thread) {
            std::uint64_t own = 0;
            for (std::size_t i = first + thread * of_thread; i < end_of(first, thread); ++i) own += tile_first[i + 1];
            return static_cast<std::uint32_t>(own);
          },
          before);
      block.each([&](unsigned thread) {
        std::uint64_t place = done + before[thread];
        for (std::size_t i = first + thread * of_thread; i < end_of(first, thread); ++i) {
          place += tile_first[i + 1];
          tile_first[i + 1] = place;
        }
      });
      done += all;
    }
    block.first([&] {
      tile_first[0] = 0;
      if (done > room && too_many != nullptr) *too_many = 1;
    });
  }

 private:
  static constexpr std::size_t of_thread = 4;  // tiles; those of all threads have less than 2^32 elements

  SLAMB_HOST_DEVICE std::size_t end_of(std::size_t first, unsigned thread) const {
    const std::size_t end = first + (thread + 1) * of_thread;
    return end < tiles ? end : tiles;
  }
};

}  // namespace slamb::cuda
