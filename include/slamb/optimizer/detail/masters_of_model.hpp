// The master copies of parameters of sixteen bits: their memory, and how copies and parameters follow each other.
#pragma once

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

class optimizer_core;

/// The master copies of a model. Those that the caller does not give are in the optimizer's memory, one after another as in the
/// state. Without types, or with stochastic rounding, there is no such memory.
class masters_of_model {
 public:
  /// Leaves the master copies to the ranks that update parts of the model: `plan` then plans none.
  void leave_to_parts() noexcept { is_left_to_parts_ = true; }

  /// Plans the memory, and notes in the table which tensors have their copy there.
  void plan(optimizer_core& core);

  /// Points the table at the memory, once it is allocated.
  void assign_memory(const arena& memory, layout& tensors) const;

  /// The copies in the optimizer's memory follow parameters that something else has written.
  void reload(const optimizer_core& core) const;
  /// The same before the first step, and before the first after `reload_later`, for frameworks that load parameters later.
  void reload_before_step(const optimizer_core& core);
  void reload_later() noexcept { reloads_ = true; }

  /// Rounds all copies, the caller's too, to the user's parameters.
  void round(const optimizer_core& core) const;

 private:
  region<float> kept_;
  bool reloads_ = true;
  bool is_left_to_parts_ = false;
};

}  // namespace slamb::detail
