// The kernel of a sparse pass (detail/pass/sparse_pass.hpp), and the places of tiles in its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

/// Runs a sparse pass over a range of tiles.
template <class Pass, class Selection, class Precision = single_precision>
struct run_selected {
  static_assert(maxima_of<Pass>() == 0, "slamb: a selected pass cannot compute maxima");

  Pass pass;
  view_of<Pass, Precision> view;
  payload_view payload;
  Selection selection;
  tile_range tiles;
  double* sums = nullptr;               ///< [all tiles][Pass::sums]
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value that the pass checked is not finite; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }
};
template <class Pass, class View, class Selection, class... More>
run_selected(const Pass&, const View&, const payload_view&, const Selection&, tile_range, More...)
    -> run_selected<Pass, Selection, typename View::precision>;

/// Computes the offset of each tile's selected elements in the payload.
template <class Selection>
struct place_payload {
  model_view view;
  Selection selection;
  std::size_t tiles = 0;                  ///< of all tensors; at least one
  std::uint64_t* tile_offsets = nullptr;  ///< [tiles + 1] receives the offsets, then the payload's size
  std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max();  ///< elements that the payload may have
  std::uint32_t* too_many = nullptr;                                   ///< becomes 1 if it has more; may be null

  std::size_t work() const noexcept { return tiles; }
};

/// Launches it.
template <class Launcher, class Selection>
void place_tiles(const Launcher& on, const model_view& view, const Selection& selection,
                 std::span<std::uint64_t> tile_offsets,
                 std::uint64_t capacity = std::numeric_limits<std::uint64_t>::max(),
                 std::uint32_t* too_many = nullptr) {
  on.launch(
      place_payload<Selection>{view, selection, tile_offsets.size() - 1, tile_offsets.data(), capacity, too_many});
}

}  // namespace slamb::detail
