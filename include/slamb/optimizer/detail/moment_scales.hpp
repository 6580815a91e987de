// The scales of m and v in eight bits: their memory, and their part of a saved state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "slamb/core/detail/hash.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// The scales of a model's moments: `blocks_of_tile` for each tile. Without blocks there are none.
/// @tparam Precision  of the backend
template <class Precision, bool InBlocks = has_blocks<Precision>>
class moment_scales {
 public:
  static void plan_memory(const arena& /*memory*/, const layout& /*tensors*/) noexcept {}
  static void visit(const state_visitor& /*part*/, const arena& /*memory*/, const layout& /*tensors*/) noexcept {}
};
template <class Precision>
class moment_scales<Precision, true> {
 public:
  /// The optimizer has this array, in blocks.
  template <class Array>
  void plan() noexcept {
    (std::is_same_v<Array, array::momentum> ? has_momentum_ : has_variance_) = true;
  }

  /// Plans the memory, once the tiles are final.
  void plan_memory(arena& memory, const layout& tensors) {
    const std::uint64_t blocks = std::uint64_t{tensors.tiles().size()} * blocks_of_tile;
    if (has_momentum_) momentum_ = memory.plan<float>(array::momentum::name, blocks);
    if (has_variance_) variance_ = memory.plan<float>(array::variance::name, blocks);
  }

  block_scales at(const arena& memory) const noexcept {
    return {has_momentum_ ? memory.view(momentum_).data() : nullptr,
            has_variance_ ? memory.view(variance_).data() : nullptr};
  }

  /// Calls part(name, bytes, state_part) for the scales, and for the blocks that they belong to.
  void visit(const state_visitor& part, const arena& memory, const layout& tensors) const {
    std::uint64_t places = hash_of_nothing;
    for (const tile& t : tensors.tiles())
      for (const std::uint64_t word : {std::uint64_t{t.segment}, t.first, std::uint64_t{t.count}})
        places = hash_with(places, word);
    part("blocks of moments, which depend on the number of ranks", bytes_of(places), state_part::fact);
    part("scales of the momentum", std::as_writable_bytes(memory.view(momentum_)), state_part::common);
    part("scales of the variance", std::as_writable_bytes(memory.view(variance_)), state_part::common);
  }

 private:
  bool has_momentum_ = false;
  bool has_variance_ = false;
  region<float> momentum_;
  region<float> variance_;
};

}  // namespace slamb::detail
