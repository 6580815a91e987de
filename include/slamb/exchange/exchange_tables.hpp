// The tables of a compressed exchange that its passes read, in the backend's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/arena.hpp"
#include "slamb/core/coded_pass.hpp"
#include "slamb/core/layout.hpp"
#include "slamb/exchange/scales.hpp"
#include "slamb/exchange/wire_layout.hpp"

namespace slamb {

/// Where the codes of each tile are, which tiles are this rank's to average, and what shares a scale.
class exchange_tables {
 public:
  /// Makes them, on the host; allocates only where there is more than ever before.
  void assign(const wire_layout& wire, int rank) {
    placed_.clear();
    own_.clear();
    for (const wire_piece& piece : wire.pieces())
      for (std::uint64_t done = 0; done < piece.count; done += layout::tile_size) {
        if (piece.owner == static_cast<std::uint32_t>(rank)) own_.push_back(placed_.size());
        const std::uint64_t blocks = wire.scales().of == scale_groups::blocks ? done / wire.scales().block : 0;
        placed_.push_back({piece.code + done, piece.scale + blocks, piece.owner});
      }
    sent_.assign_sent(wire);
    averaged_.assign_averaged(wire, placed_, own_);
  }

  /// Plans memory for them as they are, and for all others of up to `tiles` tiles of one tensor.
  template <class Base>
  void plan(Base& base, std::uint64_t tiles = 0) {
    reserve(base, placed_, placed_at_, tiles);
    reserve(base, own_, own_at_, tiles);
    const std::uint64_t most_scales = sent_.groups.empty() ? 0 : tiles;
    plan(base, sent_, sent_at_, most_scales);
    plan(base, averaged_, averaged_at_, most_scales);
  }

  /// Copies them to the backend's memory.
  template <class Base>
  void upload(Base& base) const {
    copy(base, placed_, placed_at_);
    copy(base, own_, own_at_);
    upload(base, sent_, sent_at_);
    upload(base, averaged_, averaged_at_);
  }

  /// [tiles] where the codes of each are, on the host.
  std::span<const wire_tile> placed() const noexcept { return placed_; }
  std::size_t tiles() const noexcept { return placed_.size(); }

  // In the backend's memory.
  template <class Base>
  const wire_tile* placed(const Base& base) const noexcept {
    return base.memory.view(placed_at_).data();
  }
  template <class Base>
  std::span<const std::size_t> own(const Base& base) const noexcept {
    return base.memory.view(own_at_).first(own_.size());
  }
  template <class Base>
  scale_table sent_scales(const Base& base) const noexcept {
    return table(base, sent_, sent_at_);
  }
  template <class Base>
  scale_table averaged_scales(const Base& base) const noexcept {
    return table(base, averaged_, averaged_at_);
  }

 private:
  struct scale_regions {
    region<scale_group> groups;
    region<std::uint64_t> tiles;
    region<std::uint64_t> places;
  };

  template <class Base, class T>
  static void reserve(Base& base, std::vector<T>& list, region<T>& at, std::uint64_t count) {
    const std::size_t most = std::max<std::size_t>(list.size(), count);
    list.reserve(most);
    at = base.memory.template plan<T>("tables", most);
  }
  template <class Base>
  static void plan(Base& base, scale_lists& lists, scale_regions& at, std::uint64_t most) {
    reserve(base, lists.groups, at.groups, most);
    reserve(base, lists.tiles, at.tiles, most);
    reserve(base, lists.places, at.places, most);
  }
  template <class Base, class T>
  static void copy(Base& base, const std::vector<T>& list, const region<T>& at) {
    base.executor.upload(std::span<const T>(list), base.memory.view(at));
  }
  template <class Base>
  static void upload(Base& base, const scale_lists& lists, const scale_regions& at) {
    copy(base, lists.groups, at.groups);
    copy(base, lists.tiles, at.tiles);
    copy(base, lists.places, at.places);
  }
  template <class Base>
  static scale_table table(const Base& base, const scale_lists& lists, const scale_regions& at) noexcept {
    return {base.memory.view(at.groups).data(), base.memory.view(at.tiles).data(), base.memory.view(at.places).data(),
            lists.groups.size()};
  }

  std::vector<wire_tile> placed_;  // [tiles]
  std::vector<std::size_t> own_;
  scale_lists sent_;
  scale_lists averaged_;
  region<wire_tile> placed_at_;
  region<std::size_t> own_at_;
  scale_regions sent_at_;
  scale_regions averaged_at_;
};

}  // namespace slamb
