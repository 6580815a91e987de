#pragma once

#include <vector>

#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/optimizer/detail/node_reduction.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void node_reduction::plan(optimizer_core& core) {
  if (core.ranks.local_size() == 1) return;
  given_ = core.memory.plan<segment>("tables", core.tensors.segments().size());
  gradient_ = plan_summable(core.memory, "local gradient", core.tensors.elements());
}

SLAMB_DECL void node_reduction::start(const optimizer_core& core, std::span<segment> table) const {
  if (!is_active()) return;
  const std::span<const segment> of_user = core.tensors.segments();
  std::vector<segment> of_node(of_user.begin(), of_user.end());
  for (segment& s : of_node) {
    s.gradient = payload_in(core.memory.view(gradient_)).data() + s.first;
    s.gradient_type = element_type::float32;
  }
  core.on().upload(of_user, core.memory.view(given_));
  core.on().upload(std::span<const segment>(of_node), table);
}

SLAMB_DECL void node_reduction::reduce(optimizer_core& core) const {
  if (gradient_.count == 0) return;
  any_view shares = core.whole_view();
  shares.segments = core.memory.view(given_).data();
  shares.gradient_scale = core.input_scale();
  const std::span<float> all = core.memory.view(gradient_);
  shares.exchanged = payload_in(all).data();
  core.on().run(gather_share_of_gradient{{}, 1.0F / static_cast<float>(core.ranks.local_size())}, shares,
                core.all_tiles());
  core.on().invoke({write_sum_header{core.record(), all.data(), true}});
  core.ranks.all_reduce_in_node(all, core.on().stream());
  core.on().invoke({read_local_sum_header{core.record(), all.data(), core.ranks.local_size(), core.ranks.rank(),
                                          core.ranks.size() == 1}});
}

}  // namespace slamb::detail
