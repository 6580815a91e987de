#pragma once

#include <algorithm>

#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

// Plans memory for a table of `count` entries, or `most` if that is more: then the host keeps such a table too.
template <class T>
void plan_table(optimizer_core& core, std::vector<T>& list, region<T>& at, std::size_t count, std::uint64_t most) {
  if (most > 0 && !core.is_plan()) list.reserve(std::max<std::size_t>(count, most));
  at = core.memory.plan<T>("tables", std::max<std::size_t>(count, most));
}
template <class T>
void copy_table(optimizer_core& core, const std::vector<T>& list, const region<T>& at) {
  core.on().upload(std::span<const T>(list), core.memory.view(at));
}

SLAMB_DECL void two_phase_tables::assign(const wire_layout& wire, const wire_layout* mean, int rank) {
  rank_ = static_cast<std::uint32_t>(rank);
  count_ = sizes_of(wire, mean, rank_);
}

// As `host_scale_table` makes its tables.
SLAMB_DECL two_phase_tables::counts two_phase_tables::sizes_of(const wire_layout& wire, const wire_layout* mean,
                                                               std::uint32_t rank) {
  counts all;
  const auto of = wire.scales().of, of_mean = (mean == nullptr ? wire : *mean).scales().of;
  std::size_t coded = 0, pieces = 0, own_pieces = 0, coded_tensors = 0;
  std::uint32_t last = wire_piece::dense;  // no tensor has this number
  for (const wire_piece& piece : wire.pieces()) {
    const std::size_t tiles = layout::tiles_in(piece.count);
    all.tiles += tiles;
    if (piece.owner == wire_piece::dense) continue;
    coded += tiles;
    ++pieces;
    if (piece.segment != last) ++coded_tensors;
    last = piece.segment;
    if (piece.owner != rank) continue;
    all.own += tiles;
    ++own_pieces;
  }
  if (mean != nullptr) all.mean_tiles = all.tiles;
  if (of == scale_granularity::fused) all.sent = {1, coded, static_cast<std::size_t>(wire.ranks())};
  if (of == scale_granularity::per_tensor) all.sent = {coded_tensors, coded, pieces};
  if (of_mean == scale_granularity::fused && all.own > 0) all.averaged = {1, all.own, 1};
  if (of_mean == scale_granularity::per_tensor) all.averaged = {own_pieces, all.own, own_pieces};
  return all;
}

SLAMB_DECL void two_phase_tables::plan(optimizer_core& core, std::uint64_t tiles) {
  is_kept_ = tiles > 0;
  plan_table(core, placed_, placed_at_, count_.tiles, tiles);
  if (count_.mean_tiles > 0) plan_table(core, mean_placed_, mean_placed_at_, count_.mean_tiles, tiles);
  plan_table(core, own_, own_at_, count_.own, tiles);
  const std::uint64_t most_scales = count_.sent.groups == 0 ? 0 : tiles;
  plan(core, sent_, count_.sent, sent_at_, most_scales);
  plan(core, averaged_, count_.averaged, averaged_at_, most_scales);
}

SLAMB_DECL void two_phase_tables::plan(optimizer_core& core, host_scale_table& lists, const scale_counts& count,
                                       planned_scale_table& at, std::uint64_t most) {
  plan_table(core, lists.groups, at.groups, count.groups, most);
  plan_table(core, lists.tiles, at.tiles, count.tiles, most);
  plan_table(core, lists.places, at.places, count.places, most);
}

SLAMB_DECL void two_phase_tables::upload(optimizer_core& core, const wire_layout& wire, const wire_layout* mean) {
  if (core.is_plan()) return;
  own_.clear();
  place_tiles(wire, placed_);
  if (mean != nullptr) place_tiles(*mean, mean_placed_);
  for (std::size_t i = 0; i < placed_.size(); ++i)
    if (placed_[i].owner == rank_) own_.push_back(i);
  sent_.assign_sent(wire);
  averaged_.assign_averaged(mean == nullptr ? wire : *mean, mean == nullptr ? placed_ : mean_placed_, own_);
  copy_table(core, placed_, placed_at_);
  copy_table(core, mean_placed_, mean_placed_at_);
  copy_table(core, own_, own_at_);
  upload(core, sent_, sent_at_);
  upload(core, averaged_, averaged_at_);
  if (is_kept_) return;
  placed_ = mean_placed_ = {};
  own_ = {};
  sent_ = averaged_ = {};
}

SLAMB_DECL void two_phase_tables::upload(optimizer_core& core, const host_scale_table& lists,
                                         const planned_scale_table& at) {
  copy_table(core, lists.groups, at.groups);
  copy_table(core, lists.tiles, at.tiles);
  copy_table(core, lists.places, at.places);
}

SLAMB_DECL const wire_tile* two_phase_tables::mean_placed(const optimizer_core& core) const noexcept {
  return count_.mean_tiles == 0 ? nullptr : core.memory.view(mean_placed_at_).data();
}

SLAMB_DECL std::span<const std::size_t> two_phase_tables::own(const optimizer_core& core) const noexcept {
  return core.memory.view(own_at_).first(count_.own);
}

SLAMB_DECL scale_table two_phase_tables::sent_scales(const optimizer_core& core) const noexcept {
  return table(core, count_.sent, sent_at_);
}

SLAMB_DECL scale_table two_phase_tables::averaged_scales(const optimizer_core& core) const noexcept {
  return table(core, count_.averaged, averaged_at_);
}

SLAMB_DECL scale_table two_phase_tables::table(const optimizer_core& core, const scale_counts& count,
                                               const planned_scale_table& at) noexcept {
  return {core.memory.view(at.groups).data(), core.memory.view(at.tiles).data(), core.memory.view(at.places).data(),
          count.groups};
}

SLAMB_DECL std::vector<wire_tile> two_phase_tables::places_in(const wire_layout& wire) {
  std::vector<wire_tile> placed;
  place_tiles(wire, placed);
  return placed;
}

SLAMB_DECL void two_phase_tables::place_tiles(const wire_layout& wire, std::vector<wire_tile>& placed) {
  placed.clear();
  for (const wire_piece& piece : wire.pieces())
    for (std::uint64_t done = 0; done < piece.count; done += layout::tile_size) {
      const std::uint64_t blocks = wire.scales().of == scale_granularity::blocks ? done / wire.scales().block : 0;
      placed.push_back({piece.code + done, piece.scale + blocks, piece.owner});
    }
}

SLAMB_DECL const wire_tile* two_phase_tables::placed(const optimizer_core& core) const noexcept {
  return core.memory.view(placed_at_).data();
}

}  // namespace slamb::detail
