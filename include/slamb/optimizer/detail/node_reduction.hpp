// The gradient of a node: the mean of its ranks' gradients, which passes read instead of the user's.
#pragma once

#include <span>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

class optimizer_core;

/// Averages gradients within a node. Without nodes, or with one rank in each, it does nothing, and passes read the user's
/// gradients. With n ranks, g = Σ g_l/n. Each g_l/n is a product of floats, exact if n is a power of two; the Communicator adds
/// them.
class node_reduction {
 public:
  void plan(optimizer_core& core);

  /// Makes the tables.
  /// @param table  [tensors] the table that passes read: holds the user's gradients and receives the node's
  void start(const optimizer_core& core, std::span<segment> table) const;

  /// [tensors] the table that holds the user's gradients.
  std::span<segment> given(const arena& memory, std::span<segment> table) const noexcept {
    return is_active() ? memory.view(given_) : table;
  }

  /// True if `reduce` makes the gradient that passes read.
  bool is_active() const noexcept { return given_.count > 0; }

  /// Makes the gradient of the node once all gradients of the step are ready. If any rank's gradient is not finite, the node's is
  /// not finite on all its ranks, so that passes find the same on all. The sum also carries the overflow flag and the
  /// fingerprints of the node's ranks.
  void reduce(optimizer_core& core) const;

 private:
  region<segment> given_;
  region<float> gradient_;
};

}  // namespace slamb::detail
