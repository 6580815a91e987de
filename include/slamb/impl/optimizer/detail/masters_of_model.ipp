#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/optimizer/detail/masters_of_model.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void masters_of_model::plan(optimizer_core& core) {
  if (!core.on().properties().takes_types || core.on().properties().rounds_by_chance || is_left_to_parts_) return;
  std::uint64_t elements = 0;
  for (segment& s : core.tensors.segments()) {
    s.keeps_master = s.data_type != element_type::float32 && !s.has_given_master;
    if (s.keeps_master) elements += layout::padded(s.size);
  }
  kept_ = core.memory.plan<float>("master copies", elements);
}

SLAMB_DECL void masters_of_model::assign_memory(const arena& memory, layout& tensors) const {
  float* next = memory.view(kept_).data();
  for (segment& s : tensors.segments())
    if (s.keeps_master) next = (s.master = next) + layout::padded(s.size);
}

SLAMB_DECL void masters_of_model::reload(const optimizer_core& core) const {
  if (!core.on().properties().takes_types) return;
  const any_view all = core.unskipped_view();
  const std::span<const segment> segments = core.tensors.segments();
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (segments[i].keeps_master) core.on().run(reload_masters{all.segments}, all, core.tensors.tiles_of(i));
}

SLAMB_DECL void masters_of_model::reload_before_step(const optimizer_core& core) {
  if (core.is_captured() || !std::exchange(reloads_, false)) return;
  reload(core);
}

SLAMB_DECL void masters_of_model::round(const optimizer_core& core) const {
  if (!core.on().properties().takes_types) return;
  const any_view all = core.unskipped_view();
  const std::span<const segment> segments = core.tensors.segments();
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (segments[i].master != nullptr) core.on().run(round_masters{}, all, core.tensors.tiles_of(i));
}

}  // namespace slamb::detail
