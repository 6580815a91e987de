#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "slamb/core/detail/hash.hpp"
#include "slamb/optimizer/detail/array_scales.hpp"

namespace slamb::detail {

SLAMB_DECL late_region<float> array_scales::plan(arena& memory, const char* array) {
  all_.push_back({array, memory.plan_later<float>()});
  return all_.back().scales;
}

SLAMB_DECL void array_scales::plan_memory(arena& memory, const layout& tensors) const {
  const std::uint64_t blocks = std::uint64_t{tensors.tile_count()} * blocks_of_tile;
  for (const of_array& array : all_) memory.plan(array.scales, array.name, blocks);
}

SLAMB_DECL void array_scales::visit(const state_visitor& part, const arena& memory, const layout& tensors) const {
  if (all_.empty()) return;
  std::uint64_t places = hash_of_nothing;
  for (const tile& t : tensors.tile_table())
    for (const std::uint64_t word : {std::uint64_t{t.segment}, t.first, std::uint64_t{t.count}})
      places = hash_with(places, word);
  part("blocks of moments, which depend on the number of ranks", bytes_of(places), state_part::fact);
  for (const of_array& array : all_)
    part("scales of the " + std::string(array.name), std::as_writable_bytes(memory.view(array.scales)),
         state_part::common);
}

}  // namespace slamb::detail
