// The learning rates of a step: γ by group, in the backend's memory, where passes read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/machine.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/optimizer/device_learning_rates.hpp"

namespace slamb::detail {

/// The learning rates of one optimizer. Rates from the host travel as arguments of the invoked function, unless there are very
/// many groups.
class learning_rates {
 public:
  explicit learning_rates(const layout& tensors);

  void plan(arena& memory);
  /// Fills the tables, once the memory is there.
  void start(const arena& memory, const machine& on) const;

  /// Sets the rates of the next step.
  /// @param by_group  [groups], or one for all
  /// @throws std::invalid_argument
  void set(std::span<const double> by_group);
  /// @throws std::invalid_argument
  void set(const device_learning_rates& rates);

  /// γ of a tensor in this step, rounded as passes use it. Only for rates from the host.
  double of(const segment& s) const noexcept {
    return static_cast<double>(static_cast<float>(on_host_[s.group] * static_cast<double>(s.learning_rate_factor)));
  }

  const double* stored(const arena& memory) const noexcept { return memory.view(stored_).data(); }

  /// True if the group has tensors.
  bool has_tensors(std::size_t group) const noexcept { return largest_factor_[group] >= 0.0; }

  /// [groups] the rates of the next step. Waits if they are in the backend's memory.
  std::vector<double> read(const machine& on, const stream_waiter& ranks) const;

  /// Calls invoke(write_learning_rates) for each part of the rates, at least once. The step must invoke all of these.
  void store(const arena& memory, const machine& on, step_record* record,
             function_ref<void(const write_learning_rates&)> invoke) const;

 private:
  std::uint64_t hash_of_rates() const noexcept;

  std::vector<double> largest_factor_;  // [groups]; -1: no tensors
  std::vector<double> on_host_;         // [groups]
  const double* elsewhere_ = nullptr;
  region<double> stored_;
  region<double> factors_;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/optimizer/detail/learning_rates.ipp"
#endif
