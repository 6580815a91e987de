// Parameters that differ from rank to rank → their mean.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/core/layout.hpp"
#include "slamb/core/pass.hpp"
#include "slamb/exchange/payload_size.hpp"
#include "slamb/optimizer/common_passes.hpp"

namespace slamb {

/// What a buffer for `average_parameters` must hold at least: elements.
inline std::uint64_t least_averaging_buffer(const layout& tensors) noexcept {
  return std::min<std::uint64_t>(layout::tile_size, tensors.elements());
}

/// The mean of the parameters over ranks, piece by piece through `buffer`, in a number of collectives that depends on sizes
/// alone.
///
/// @param refused  where it points to is not 0: parameters stay as they are, on all ranks
template <class Base>
void average_parameters(Base& base, std::span<float> buffer, const std::uint32_t* refused = nullptr) {
  if (base.ranks.size() == 1) return;
  model_view pieces = base.view();
  pieces.refused = refused;
  pieces.exchanged = buffer.data();
  const auto average = [&](const tile_range& piece, std::uint64_t elements) {
    pieces.exchanged_first = base.tensors.first_element(base.tensors.tiles()[piece.first]);
    base.executor.run(gather_parameters{}, pieces, piece);
    base.ranks.all_reduce_sum(buffer.first(elements), base.executor.stream());
    base.executor.run(scatter_parameters{{}, 1.0F / static_cast<float>(base.ranks.size())}, pieces, piece);
  };
  for_each_piece(
      base.tensors.tiles().size(), buffer.size(), [&](std::size_t i) { return base.tensors.tiles()[i].count; },
      average);
}

}  // namespace slamb
