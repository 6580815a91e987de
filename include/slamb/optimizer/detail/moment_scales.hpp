// The scales of m and v in eight bits: their memory, and their part of a saved state.
#pragma once

#include <type_traits>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// The scales of a model's moments: `blocks_of_tile` for each tile. Without blocks there are none.
class moment_scales {
 public:
  /// The optimizer has this array, in blocks.
  template <class Array>
  void plan() noexcept {
    (std::is_same_v<Array, array::momentum> ? has_momentum_ : has_variance_) = true;
  }

  /// Plans the memory, once the tiles are final.
  void plan_memory(arena& memory, const layout& tensors);

  block_scales at(const arena& memory) const noexcept {
    return {has_momentum_ ? memory.view(momentum_).data() : nullptr,
            has_variance_ ? memory.view(variance_).data() : nullptr};
  }

  /// Calls part(name, bytes, state_part) for the scales, and for the blocks that they belong to.
  void visit(const state_visitor& part, const arena& memory, const layout& tensors) const;

 private:
  bool has_momentum_ = false;
  bool has_variance_ = false;
  region<float> momentum_;
  region<float> variance_;
};

}  // namespace slamb::detail
