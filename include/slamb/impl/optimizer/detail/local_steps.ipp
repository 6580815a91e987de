#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "slamb/optimizer/detail/local_steps.hpp"
#include "slamb/optimizer/detail/optimizer_core.hpp"

namespace slamb::detail {

SLAMB_DECL void local_steps::plan(optimizer_core& core) {
  inverse_rate_sums_ = core.memory.plan<float>("learning rates", rate_sums_.size());
  participants_ = core.memory.plan<std::uint8_t>("tables", rate_sums_.size());
}

SLAMB_DECL void local_steps::count(const optimizer_core& core) {
  for (std::size_t i = 0; i < rate_sums_.size(); ++i) {
    rate_sums_[i] += rate_of(core, i);
    if (has_gradient(core, i)) has_moved_[i] = 1;
  }
  differ_ = true;
}

SLAMB_DECL void local_steps::upload_rate_sums(const optimizer_core& core) {
  for (std::size_t i = 0; i < inverse_.size(); ++i) {
    const double sum = rate_sums_[i] + rate_of(core, i);
    inverse_[i] = sum >= static_cast<double>(std::numeric_limits<float>::min()) ? static_cast<float>(1.0 / sum) : 0.0F;
  }
  core.on().upload(std::span<const float>(inverse_), core.memory.view(inverse_rate_sums_));
}

SLAMB_DECL const float* local_steps::inverse_rate_sums(const optimizer_core& core) const noexcept {
  return core.memory.view(inverse_rate_sums_).data();
}

SLAMB_DECL const std::uint8_t* local_steps::upload_participants(const optimizer_core& core) {
  for (std::size_t i = 0; i < has_moved_.size(); ++i)
    takes_part_[i] = has_moved_[i] != 0 || has_gradient(core, i) ? 1 : 0;
  if (std::ranges::find(takes_part_, 0) == takes_part_.end()) return nullptr;
  const std::span<std::uint8_t> table = core.memory.view(participants_);
  core.on().upload(std::span<const std::uint8_t>(takes_part_), table);
  return table.data();
}

SLAMB_DECL void local_steps::forget() {
  std::fill(rate_sums_.begin(), rate_sums_.end(), 0.0);
  std::fill(has_moved_.begin(), has_moved_.end(), std::uint8_t{0});
  differ_ = false;
}

SLAMB_DECL void local_steps::visit_tensors(const state_visitor& part) {
  part("sums of rates", bytes_of_all(rate_sums_), state_part::errors);
  part("moved tensors", bytes_of_all(has_moved_), state_part::errors);
}

SLAMB_DECL void local_steps::visit_difference(const state_visitor& part) {
  visit_flag(part, "parameters differ", differ_, state_part::errors);
}

SLAMB_DECL const segment& local_steps::tensor(const optimizer_core& core, std::size_t i) noexcept {
  return std::as_const(core.tensors).segments()[i];
}

SLAMB_DECL bool local_steps::has_gradient(const optimizer_core& core, std::size_t i) noexcept {
  return tensor(core, i).has_gradient;
}

SLAMB_DECL double local_steps::rate_of(const optimizer_core& core, std::size_t i) noexcept {
  return has_gradient(core, i) ? core.rates.of(tensor(core, i)) : 0.0;
}

}  // namespace slamb::detail
