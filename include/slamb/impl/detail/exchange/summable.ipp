#pragma once

#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void all_reduce_payload(std::span<float> payload, std::uint64_t total, optimizer_core& core,
                                   bool flags_overflow) {
  if (core.ranks.size() == 1) return core.on().invoke({skip_if_not_finite{core.record(), flags_overflow}});
  float* const header = payload.data() - sum_header::floats;
  core.on().invoke({write_sum_header{core.record(), header, false, flags_overflow}});
  core.ranks.all_reduce_sum_with_header(std::span<float>(header, sum_header::floats + payload.size()),
                                        sum_header::floats, core.on().stream());
  core.on().invoke({read_sum_header{core.record(), header, core.ranks.size(), total}});
}

}  // namespace slamb::detail
