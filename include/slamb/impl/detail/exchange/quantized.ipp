#pragma once

#include <utility>

#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void active_elements::plan(optimizer_core& core, const wire_layout& wire, bool zero_aware, bool reads_rows,
                                      bool announces) {
  exists_ = zero_aware;
  std::size_t rows = 0;
  if (reads_rows)
    for (const segment& s : std::as_const(core.tensors).segments()) rows += s.rows.size();
  exists_ = exists_ || rows > 0;
  zero_aware_ = zero_aware;
  announces_ = zero_aware && announces;
  counts_ = core.memory.plan<std::uint64_t>("tables", core.tensors.tile_count());
  if (!exists_) return;
  bits_ = core.memory.plan<std::uint16_t>("mask", wire.ranks() * wire.codes() / wire_layout::code_unit);
  if (announces_ && rows > 0) may_announce_ = core.memory.plan<std::uint16_t>("mask", bits_.count);
  rows_ = core.memory.plan<std::uint8_t>("mask", rows);
  masks_ = core.memory.plan<row_mask>("mask", core.tensors.segments().size());
}

SLAMB_DECL void active_elements::upload(optimizer_core& core) const {
  if (!exists_) return;
  std::vector<row_mask> masks;
  std::size_t first = 0;
  for (const segment& s : std::as_const(core.tensors).segments()) {
    const std::span<std::uint8_t> to = core.memory.view(rows_).subspan(first, s.rows.size());
    core.on().upload(s.rows, to);
    masks.push_back({to.data(), to.size()});
    first += to.size();
  }
  core.on().upload(std::span<const row_mask>(masks), core.memory.view(masks_));
}

SLAMB_DECL void active_elements::set_masks(const optimizer_core& core, wire_view& wire) const noexcept {
  if (!exists_) return;
  wire.active = core.memory.view(bits_).data();
  wire.announces = announces_;
  if (may_announce_.count > 0) wire.may_announce = core.memory.view(may_announce_).data();
}

SLAMB_DECL const std::uint64_t* active_elements::counts(const optimizer_core& core) const noexcept {
  return core.memory.view(counts_).data();
}

}  // namespace slamb::detail
