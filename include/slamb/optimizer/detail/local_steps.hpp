// The local steps of 0/1 Adam since the last exchange of updates: their rates, and the tensors that they moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

class optimizer_core;

/// The ranks' local steps since the last exchange: docs/algorithms/zero_one_adam.md (12).
class local_steps {
 public:
  explicit local_steps(std::size_t tensors)
      : rate_sums_(tensors, 0.0), inverse_(tensors), has_moved_(tensors), takes_part_(tensors) {}

  /// Plans the tables of an exchange in the backend's memory.
  void plan(optimizer_core& core);

  /// Counts the current step.
  void count(const optimizer_core& core);

  /// Uploads 1/Γ of each tensor, with the rate of the current step.
  void upload_rate_sums(const optimizer_core& core);
  /// [tensors] 1/Γ; 0 where Γ is 0.
  const float* inverse_rate_sums(const optimizer_core& core) const noexcept;

  /// Uploads which tensors have moved since the last exchange, or move in this step.
  /// @return [tensors] 0 for tensors that have not; null if all have
  const std::uint8_t* upload_participants(const optimizer_core& core);

  /// True if parameters differ between ranks.
  bool differ() const noexcept { return differ_; }
  void forget();

  void visit_tensors(const state_visitor& part);
  void visit_difference(const state_visitor& part);

 private:
  static const segment& tensor(const optimizer_core& core, std::size_t i) noexcept;
  static bool has_gradient(const optimizer_core& core, std::size_t i) noexcept;
  // 0 for a tensor that the current step leaves as it is.
  static double rate_of(const optimizer_core& core, std::size_t i) noexcept;

  region<float> inverse_rate_sums_;
  region<std::uint8_t> participants_;
  std::vector<double> rate_sums_;         // [tensors] Γ without the current step
  std::vector<float> inverse_;            // [tensors]
  std::vector<std::uint8_t> has_moved_;   // [tensors]
  std::vector<std::uint8_t> takes_part_;  // [tensors]
  bool differ_ = false;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/optimizer/detail/local_steps.ipp"
#endif
