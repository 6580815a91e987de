#pragma once

#include "slamb/detail/exchange/summable.hpp"
#include "slamb/optimizer/detail/dense_gradient.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void clip_gradient(optimizer_core& core, const any_view& gradients, double c, std::uint32_t* not_finite) {
  if (!bounds_norm(c)) return;
  core.on().run(dense_gradient_passes::norm{}, gradients, core.all_tiles(), core.sums(), not_finite);
  core.add_up_tiles();
  core.on().invoke({clip_gradient_scale{core.record(), &core.scalars()->gradient_scale, core.sums(), c}});
}

SLAMB_DECL void clip_exchanged(optimizer_core& core, float* exchanged, double c) {
  any_view gradients = core.whole_view();
  gradients.exchanged = exchanged;
  gradients.gradient_is_exchanged = true;
  clip_gradient(core, gradients, c);
}

SLAMB_DECL void own_gradient_clip::plan(optimizer_core& core, double c, bool is_local) {
  c_ = c;
  is_local_ = is_local || core.ranks.size() == 1;
  share_ = core.memory.plan<float>("scalars", 1);
}

SLAMB_DECL void own_gradient_clip::clip(optimizer_core& core) const {
  if (!is_active()) return;
  if (is_local_) return clip_gradient(core, core.whole_view(), c_, core.not_finite());
  core.on().run(dense_gradient_passes::norm{}, core.whole_view(), core.all_tiles(), core.sums(), core.not_finite());
  core.add_up_tiles();
  const std::span<float> share = core.memory.view(share_);
  core.on().invoke({write_square_share{core.sums(), share.data(), core.ranks.size()}});
  core.ranks.all_reduce_sum(share, core.on().stream());
  core.on().invoke({read_mean_square{core.record(), share.data(), core.sums()},
                    clip_gradient_scale{core.record(), &core.scalars()->gradient_scale, core.sums(), c_}});
}

SLAMB_DECL bool exchange_dense_gradient(optimizer_core& core, std::span<float> buffer, bool skip_non_finite,
                                        const gradient_bucket& bucket, double max_norm) {
  any_view g = core.whole_view();
  std::uint32_t* const not_finite = skip_non_finite ? core.not_finite() : nullptr;
  if (core.ranks.size() == 1) {
    if (!bucket.is_last) return false;
    if (bounds_norm(max_norm))
      clip_gradient(core, g, max_norm, not_finite);
    else if (skip_non_finite)
      core.on().run(dense_gradient_passes::check{}, g, core.all_tiles(), nullptr, not_finite);
    core.on().invoke({skip_if_not_finite{core.record(), skip_non_finite}});
    return true;
  }
  g.exchanged = buffer.data();
  core.on().run(dense_gradient_passes::gather{}, g, bucket.tiles, nullptr, not_finite);
  const std::uint64_t first = core.tensors.first_element(bucket.first);
  const std::span<float> values = buffer.subspan(first, core.tensors.first_element(bucket.last) - first);
  if (!bucket.is_last) {
    core.overlap.start_sum(values);
  } else {
    core.overlap.join();
    all_reduce_payload(values, buffer.size(), core, skip_non_finite);
  }
  return true;
}

}  // namespace slamb::detail
