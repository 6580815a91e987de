// The scales that tiles of a compressed exchange share: which tiles make each, and where it is written.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/coded_pass.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/exchange/wire_layout.hpp"

namespace slamb {

/// The scale of `count` elements whose squares or magnitudes add up to `total`, or whose largest magnitude it is.
template <segment_scale Scale>
SLAMB_HOST_DEVICE float scale_of(double total, std::uint64_t count) {
  if (count == 0) return 0.0F;
  if constexpr (Scale == segment_scale::l2) return static_cast<float>(std::sqrt(total / static_cast<double>(count)));
  if constexpr (Scale == segment_scale::l1) return static_cast<float>(total / static_cast<double>(count));
  return static_cast<float>(total);
}

/// What a quantizer's scales ask of those who encode.
template <quantizer Quantizer>
struct shared_scales {
  /// Tiles share scales: they are made when all tiles have been looked at.
  static constexpr bool exist = Quantizer::scale != segment_scale::none && !requires(const Quantizer& q) { q.block; };
  /// And codes depend on them: the scale must be known before anything is encoded.
  static constexpr bool are_known_first = exist && !encodes_without_scale<Quantizer>;
};

/// What has one scale: some tiles, and the places where it is written.
struct scale_group {
  std::uint64_t first_tile = 0;  ///< in the table's tiles
  std::uint64_t last_tile = 0;
  std::uint64_t first_place = 0;  ///< in the table's places
  std::uint64_t last_place = 0;
};

/// All scales of one phase. Trivially copyable; pointers are in the backend's memory space.
struct scale_table {
  const scale_group* groups = nullptr;
  const std::uint64_t* tiles = nullptr;   ///< numbers of tiles, group by group
  const std::uint64_t* places = nullptr;  ///< floats from the first message on, group by group
  std::size_t group_count = 0;
};

/// The arrays of a scale_table, made on the host; empty where tiles share no scales.
struct scale_lists {
  std::vector<scale_group> groups;
  std::vector<std::uint64_t> tiles;
  std::vector<std::uint64_t> places;

  /// Of what a rank sends, into the messages to all ranks.
  void assign_sent(const wire_layout& wire) {
    clear();
    if (!has_shared_scales(wire)) return;
    const bool fused = wire.scales().of == scale_groups::fused;
    const std::uint64_t message = wire.message_bytes() / sizeof(float);
    if (fused) {
      begin();
      for (std::uint64_t rank = 0; rank < wire.ranks(); ++rank) places.push_back(rank * message);
    }
    const std::span<const wire_piece> pieces = wire.pieces();
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const wire_piece& piece = pieces[i];
      const std::uint64_t last = number + (piece.count + layout::tile_size - 1) / layout::tile_size;
      if (piece.owner != wire_piece::whole) {
        if (!fused && (i == 0 || pieces[i - 1].segment != piece.segment)) begin();
        for (std::uint64_t tile = number; tile < last; ++tile) tiles.push_back(tile);
        if (!fused) places.push_back(piece.owner * message + piece.scale);
      }
      end();
      number = last;
    }
    end();
  }

  /// Of the mean over this rank's chunk, into the message to all.
  ///
  /// @param placed  [all tiles] where the codes of each are
  /// @param own     the tiles of the chunk
  void assign_averaged(const wire_layout& wire, std::span<const wire_tile> placed, std::span<const std::size_t> own) {
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

 private:
  static bool has_shared_scales(const wire_layout& wire) noexcept {
    return wire.scales().of == scale_groups::fused || wire.scales().of == scale_groups::per_tensor;
  }
  void clear() noexcept {
    groups.clear();
    tiles.clear();
    places.clear();
  }
  void begin() { groups.push_back({tiles.size(), tiles.size(), places.size(), places.size()}); }
  void end() noexcept {
    if (groups.empty()) return;
    groups.back().last_tile = tiles.size();
    groups.back().last_place = places.size();
  }
};

}  // namespace slamb
