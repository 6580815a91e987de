#pragma once

#include "slamb/detail/pass/messages.hpp"

namespace slamb::detail {

SLAMB_DECL void host_scale_table::assign_sent(const wire_layout& wire) {
  clear();
  if (!has_shared_scales(wire)) return;
  const bool fused = wire.scales().of == scale_granularity::fused;
  const std::uint64_t message = wire.message_bytes() / sizeof(float);
  if (fused) {
    begin();
    for (std::uint64_t rank = 0; rank < wire.ranks(); ++rank) places.push_back(rank * message + wire.first_scale());
  }
  const std::span<const wire_piece> pieces = wire.pieces();
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const wire_piece& piece = pieces[i];
    const std::uint64_t last = number + (piece.count + layout::tile_size - 1) / layout::tile_size;
    if (piece.owner != wire_piece::dense) {
      if (!fused && (i == 0 || pieces[i - 1].segment != piece.segment)) begin();
      for (std::uint64_t tile = number; tile < last; ++tile) tiles.push_back(tile);
      if (!fused) places.push_back(piece.owner * message + piece.scale);
    }
    end();
    number = last;
  }
  end();
}

SLAMB_DECL void host_scale_table::assign_averaged(const wire_layout& wire, std::span<const wire_tile> placed,
                                                  std::span<const std::size_t> own) {
  clear();
  if (!has_shared_scales(wire)) return;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::uint64_t scale = placed[own[i]].scale;
    if (i == 0 || scale != placed[own[i - 1]].scale) {
      begin();
      places.push_back(scale);
    }
    tiles.push_back(own[i]);
    end();
  }
}

}  // namespace slamb::detail
