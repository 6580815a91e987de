// The kernel of data-dependent sparsifiers: a compressor reads the values of a tile and selects the elements to send.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// Lets `compressor` select among the values that `pass` forms for each tile. Skips dense tensors, and tiles with a value that is
/// not finite.
template <class Pass, class Compressor, class Precision = single_precision>
struct choose_elements {
  Pass pass;
  Compressor compressor;
  view_of<Pass, Precision> view;
  tile_range tiles;
  std::uint16_t* bits = nullptr;        ///< [state elements/16], zeroed
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value is not finite: `bits` is then not valid; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }
};
template <class Pass, class Compressor, class View, class... More>
choose_elements(const Pass&, const Compressor&, const View&, tile_range, More...)
    -> choose_elements<Pass, Compressor, typename View::precision>;

}  // namespace slamb::detail
