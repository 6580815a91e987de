// The scales of arrays in blocks: their memory, and their part of a saved state.
#pragma once

#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// The scales of a state's arrays in blocks: `blocks_of_tile` for each tile. Without such arrays there are none.
class array_scales {
 public:
  /// The optimizer has an array of this name, in blocks.
  late_region<float> plan(arena& memory, const char* array);

  bool exist() const noexcept { return !all_.empty(); }

  /// Plans the memory, once the tiles are final.
  void plan_memory(arena& memory, const layout& tensors) const;

  /// Calls part(name, bytes, state_part) for the scales, and for the blocks that they belong to.
  void visit(const state_visitor& part, const arena& memory, const layout& tensors) const;

 private:
  struct of_array {
    const char* name;
    late_region<float> scales;
  };
  std::vector<of_array> all_;
};

}  // namespace slamb::detail
