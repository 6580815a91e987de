#pragma once

#include <cstdint>
#include <span>

#include "slamb/core/detail/hash.hpp"
#include "slamb/optimizer/detail/moment_scales.hpp"

namespace slamb::detail {

SLAMB_DECL void moment_scales::plan_memory(arena& memory, const layout& tensors) {
  const std::uint64_t blocks = std::uint64_t{tensors.tile_count()} * blocks_of_tile;
  if (has_momentum_) momentum_ = memory.plan<float>(array::momentum::name, blocks);
  if (has_variance_) variance_ = memory.plan<float>(array::variance::name, blocks);
}

SLAMB_DECL void moment_scales::visit(const state_visitor& part, const arena& memory, const layout& tensors) const {
  if (!has_momentum_ && !has_variance_) return;
  std::uint64_t places = hash_of_nothing;
  for (const tile& t : tensors.tile_table())
    for (const std::uint64_t word : {std::uint64_t{t.segment}, t.first, std::uint64_t{t.count}})
      places = hash_with(places, word);
  part("blocks of moments, which depend on the number of ranks", bytes_of(places), state_part::fact);
  part("scales of the momentum", std::as_writable_bytes(memory.view(momentum_)), state_part::common);
  part("scales of the variance", std::as_writable_bytes(memory.view(variance_)), state_part::common);
}

}  // namespace slamb::detail
