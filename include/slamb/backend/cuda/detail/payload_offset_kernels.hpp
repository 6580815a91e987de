// The kernels that compute the offset of each tile's selected elements in the payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/backend/cuda/detail/selected_elements.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail::cuda {

/// Computes the offsets directly, for a selection with `selected_before`: the number of selected elements of a tensor before a
/// given one. A block computes the offsets of as many tiles as it has threads. The kernel does not read `skip`: a block sets it
/// if the payload is too large, and blocks must not read memory that other blocks write.
template <class Selection>
struct place_kernel {
  static constexpr unsigned threads = 256;

  model_view view;
  Selection selection;
  std::size_t tiles = 0;                  ///< of all tensors; at least one
  std::uint64_t* tile_offsets = nullptr;  ///< [tiles + 1] receives the offsets, then the payload's size
  std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max();  ///< elements that the payload may have
  std::uint32_t* too_many = nullptr;                                   ///< becomes 1 if it has more; may be null

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return (tiles + threads - 1) / threads; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    for (std::size_t first = block.index() * threads; first < tiles; first += block.count() * threads) {
      const tile begin = view.tiles[first];
      const double tensors_before = block.sum([&](unsigned thread) {  // exact: below 2^53
        double own = 0.0;
        for (std::uint32_t i = thread; i < begin.segment; i += threads)
          own += static_cast<double>(before(i, view.segments[i].size));
        return own;
      });
      const std::uint64_t payload_before =
          static_cast<std::uint64_t>(tensors_before) + before(begin.segment, begin.first);
      typename Block::template registers<std::uint32_t> tiles_before;
      const std::uint32_t all = block.exclusive_sum(
          [&](unsigned thread) { return first + thread < tiles ? active(view.tiles[first + thread]) : 0U; },
          tiles_before);
      block.each([&](unsigned thread) {
        if (first + thread < tiles) tile_offsets[first + thread] = payload_before + tiles_before[thread];
      });
      if (tiles - first > threads) continue;
      block.first([&] {
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

/// Counts the selected elements of each tile, one block for each tile, by asking the selection for every element.
template <class Selection>
struct count_selected_kernel {
  static constexpr unsigned threads = 256;

  model_view view;
  Selection selection;
  std::size_t tiles = 0;                  ///< of all tensors
  std::uint64_t* tile_offsets = nullptr;  ///< [tiles + 1] receives the count of tile i at i + 1

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = block.index(); i < tiles; i += block.count()) {
      const tile t = view.tiles[i];
      typename Block::template registers<std::uint32_t> before;
      const std::uint32_t all = block.exclusive_sum([&](unsigned thread) { return seen(t, thread); }, before);
      block.first([&] { tile_offsets[i + 1] = all; });
    }
  }

 private:
  // The number of selected elements among this thread's.
  SLAMB_HOST_DEVICE std::uint32_t seen(const tile& t, unsigned thread) const {
    const segment& s = view.segments[t.segment];
    if (s.dense) return thread == 0 ? t.count : 0U;
    constexpr std::uint32_t piece = 16;
    std::uint32_t selected = 0;
    for (std::uint32_t first = thread * piece; first < t.count; first += threads * piece) {
      const std::uint32_t count = t.count - first < piece ? t.count - first : piece;
      const coordinate c = coordinate_of(s, t.segment, t.first + first);
      if constexpr (has_words<resolved_t<Selection>>)
        selected += count_of(resolved(selection).word(c, count));
      else
        for_each_run(resolved(selection), c, count,
                     [&](std::uint64_t /*begin*/, std::uint64_t length, std::uint32_t age) {
                       if (age == 0) selected += static_cast<std::uint32_t>(length);
                     });
    }
    return selected;
  }
};

/// Turns the counts of all tiles into offsets, in one block.
struct place_tiles_kernel {
  static constexpr unsigned threads = 1024;

  std::size_t tiles = 0;
  /// [tiles + 1] from index 1 on the counts, each below 2^20; becomes the offsets, then the payload's size.
  std::uint64_t* tile_offsets = nullptr;
  const std::uint32_t* skip = nullptr;                                 ///< not 0: nothing is done; may be null
  std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max();  ///< elements that the payload may have
  std::uint32_t* too_many = nullptr;                                   ///< becomes 1 if it has more; may be null

  /// The most blocks that have work to do.
  static std::size_t work() noexcept { return 1; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(skip) || block.index() != 0) return;
    std::uint64_t done = 0;  // elements of the tiles before
    for (std::size_t first = 0; first < tiles; first += threads * of_thread) {
      typename Block::template registers<std::uint32_t> before;
      const std::uint32_t all = block.exclusive_sum(
          [&](unsigned thread) {
            std::uint64_t own = 0;
            for (std::size_t i = first + thread * of_thread; i < end_of(first, thread); ++i) own += tile_offsets[i + 1];
            return static_cast<std::uint32_t>(own);
          },
          before);
      block.each([&](unsigned thread) {
        std::uint64_t offset = done + before[thread];
        for (std::size_t i = first + thread * of_thread; i < end_of(first, thread); ++i) {
          offset += tile_offsets[i + 1];
          tile_offsets[i + 1] = offset;
        }
      });
      done += all;
    }
    block.first([&] {
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

}  // namespace slamb::detail::cuda
