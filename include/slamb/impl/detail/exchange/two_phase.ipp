#pragma once

#include <algorithm>

#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

template <class T>
void reserve_table(optimizer_core& core, std::vector<T>& list, region<T>& at, std::uint64_t count) {
  const std::size_t most = std::max<std::size_t>(list.size(), count);
  list.reserve(most);
  at = core.memory.plan<T>("tables", most);
}
template <class T>
void copy_table(optimizer_core& core, const std::vector<T>& list, const region<T>& at) {
  core.on().upload(std::span<const T>(list), core.memory.view(at));
}

SLAMB_DECL void two_phase_tables::assign(const wire_layout& wire, const wire_layout* mean, int rank) {
  placed_.clear();
  mean_placed_.clear();
  own_.clear();
  place_tiles(wire, placed_);
  if (mean != nullptr) place_tiles(*mean, mean_placed_);
  for (std::size_t i = 0; i < placed_.size(); ++i)
    if (placed_[i].owner == static_cast<std::uint32_t>(rank)) own_.push_back(i);
  sent_.assign_sent(wire);
  averaged_.assign_averaged(mean == nullptr ? wire : *mean, mean == nullptr ? placed_ : mean_placed_, own_);
}

SLAMB_DECL void two_phase_tables::plan(optimizer_core& core, std::uint64_t tiles) {
  reserve_table(core, placed_, placed_at_, tiles);
  if (!mean_placed_.empty()) reserve_table(core, mean_placed_, mean_placed_at_, tiles);
  reserve_table(core, own_, own_at_, tiles);
  const std::uint64_t most_scales = sent_.groups.empty() ? 0 : tiles;
  plan(core, sent_, sent_at_, most_scales);
  plan(core, averaged_, averaged_at_, most_scales);
}

SLAMB_DECL void two_phase_tables::plan(optimizer_core& core, host_scale_table& lists, planned_scale_table& at,
                                       std::uint64_t most) {
  reserve_table(core, lists.groups, at.groups, most);
  reserve_table(core, lists.tiles, at.tiles, most);
  reserve_table(core, lists.places, at.places, most);
}

SLAMB_DECL void two_phase_tables::upload(optimizer_core& core) const {
  copy_table(core, placed_, placed_at_);
  copy_table(core, mean_placed_, mean_placed_at_);
  copy_table(core, own_, own_at_);
  upload(core, sent_, sent_at_);
  upload(core, averaged_, averaged_at_);
}

SLAMB_DECL void two_phase_tables::upload(optimizer_core& core, const host_scale_table& lists,
                                         const planned_scale_table& at) {
  copy_table(core, lists.groups, at.groups);
  copy_table(core, lists.tiles, at.tiles);
  copy_table(core, lists.places, at.places);
}

SLAMB_DECL const wire_tile* two_phase_tables::mean_placed(const optimizer_core& core) const noexcept {
  return mean_placed_.empty() ? nullptr : core.memory.view(mean_placed_at_).data();
}

SLAMB_DECL std::span<const std::size_t> two_phase_tables::own(const optimizer_core& core) const noexcept {
  return core.memory.view(own_at_).first(own_.size());
}

SLAMB_DECL scale_table two_phase_tables::sent_scales(const optimizer_core& core) const noexcept {
  return table(core, sent_, sent_at_);
}

SLAMB_DECL scale_table two_phase_tables::averaged_scales(const optimizer_core& core) const noexcept {
  return table(core, averaged_, averaged_at_);
}

SLAMB_DECL scale_table two_phase_tables::table(const optimizer_core& core, const host_scale_table& lists,
                                               const planned_scale_table& at) noexcept {
  return {core.memory.view(at.groups).data(), core.memory.view(at.tiles).data(), core.memory.view(at.places).data(),
          lists.groups.size()};
}

SLAMB_DECL void two_phase_tables::place_tiles(const wire_layout& wire, std::vector<wire_tile>& placed) {
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
