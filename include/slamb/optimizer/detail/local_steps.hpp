// The local steps of 0/1 Adam since the last exchange of updates: their rates, and the tensors that they moved.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/state/state_part.hpp"

namespace slamb::detail {

/// What the ranks' local steps have done since the last exchange: docs/algorithms/zero_one_adam.md (12).
template <class Context>
class local_steps {
 public:
  explicit local_steps(std::size_t tensors)
      : rate_sums_(tensors, 0.0), inverse_(tensors), has_moved_(tensors), takes_part_(tensors) {}

  /// Plans the tables of an exchange in the backend's memory.
  void plan(Context& context) {
    inverse_rate_sums_ = context.memory.template plan<float>("learning rates", rate_sums_.size());
    participants_ = context.memory.template plan<std::uint8_t>("tables", rate_sums_.size());
  }

  /// Counts the current step.
  void count(const Context& context) {
    for (std::size_t i = 0; i < rate_sums_.size(); ++i) {
      rate_sums_[i] += rate_of(context, i);
      if (has_gradient(context, i)) has_moved_[i] = 1;
    }
    differ_ = true;
  }

  /// Uploads 1/Γ of each tensor, with the rate of the current step.
  void upload_rate_sums(const Context& context) {
    for (std::size_t i = 0; i < inverse_.size(); ++i) {
      const double sum = rate_sums_[i] + rate_of(context, i);
      inverse_[i] =
          sum >= static_cast<double>(std::numeric_limits<float>::min()) ? static_cast<float>(1.0 / sum) : 0.0F;
    }
    context.executor.upload(std::span<const float>(inverse_), context.memory.view(inverse_rate_sums_));
  }
  /// [tensors] 1/Γ; 0 where Γ is 0.
  const float* inverse_rate_sums(const Context& context) const noexcept {
    return context.memory.view(inverse_rate_sums_).data();
  }

  /// Uploads which tensors have moved since the last exchange, or move in this step.
  /// @return [tensors] 0 for tensors that have not; null if all have
  const std::uint8_t* upload_participants(const Context& context) {
    for (std::size_t i = 0; i < has_moved_.size(); ++i)
      takes_part_[i] = has_moved_[i] != 0 || has_gradient(context, i) ? 1 : 0;
    if (std::ranges::find(takes_part_, 0) == takes_part_.end()) return nullptr;
    const std::span<std::uint8_t> table = context.memory.view(participants_);
    context.executor.upload(std::span<const std::uint8_t>(takes_part_), table);
    return table.data();
  }

  /// True if parameters differ between ranks.
  bool differ() const noexcept { return differ_; }
  void forget() {
    std::fill(rate_sums_.begin(), rate_sums_.end(), 0.0);
    std::fill(has_moved_.begin(), has_moved_.end(), std::uint8_t{0});
    differ_ = false;
  }

  void visit_tensors(const state_visitor& part) {
    part("sums of rates", bytes_of_all(rate_sums_), state_part::errors);
    part("moved tensors", bytes_of_all(has_moved_), state_part::errors);
  }
  void visit_difference(const state_visitor& part) {
    visit_flag(part, "parameters differ", differ_, state_part::errors);
  }

 private:
  static const segment& tensor(const Context& context, std::size_t i) noexcept {
    return std::as_const(context.tensors).segments()[i];
  }
  static bool has_gradient(const Context& context, std::size_t i) noexcept { return tensor(context, i).has_gradient; }
  // 0 for a tensor that the current step leaves as it is.
  static double rate_of(const Context& context, std::size_t i) noexcept {
    return has_gradient(context, i) ? context.rates.of(tensor(context, i)) : 0.0;
  }

  region<float> inverse_rate_sums_;
  region<std::uint8_t> participants_;
  std::vector<double> rate_sums_;         // [tensors] Γ without the current step
  std::vector<float> inverse_;            // [tensors]
  std::vector<std::uint8_t> has_moved_;   // [tensors]
  std::vector<std::uint8_t> takes_part_;  // [tensors]
  bool differ_ = false;
};

}  // namespace slamb::detail
