// The kernels of a pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

/// Runs a pass over a range of tiles.
template <class Pass, class Precision = single_precision>
struct run_pass {
  Pass pass;
  view_of<Pass, Precision> view;
  tile_range tiles;
  double* sums = nullptr;               ///< [all tiles][results] each tile's sums, then its maxima
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value that the pass checked is not finite; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }
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
};

}  // namespace slamb::detail
