#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/optimizer/detail/learning_rates.hpp"

namespace slamb::detail {

SLAMB_DECL learning_rates::learning_rates(const layout& tensors) : largest_factor_(tensors.groups(), -1.0) {
  for (const segment& s : tensors.segments())
    largest_factor_[s.group] = std::max(largest_factor_[s.group], static_cast<double>(s.learning_rate_factor));
  on_host_.reserve(tensors.groups());
}

SLAMB_DECL void learning_rates::plan(arena& memory) {
  stored_ = memory.plan<double>("learning rates", largest_factor_.size());
  factors_ = memory.plan<double>("learning rates", largest_factor_.size());
}

SLAMB_DECL void learning_rates::start(const arena& memory, const machine& on) const {
  on.upload(std::span<const double>(largest_factor_), memory.view(factors_));
}

SLAMB_DECL void learning_rates::set(std::span<const double> by_group) {
  if (by_group.size() != 1 && by_group.size() != largest_factor_.size())
    throw std::invalid_argument("slamb: step() was given " + std::to_string(by_group.size()) +
                                " learning rates, but there are " + std::to_string(largest_factor_.size()) + " groups");
  for (const double rate : by_group) require_non_negative("the learning rate", rate);
  for (std::size_t i = 0; i < largest_factor_.size(); ++i)
    require_non_negative("the learning rate times learning_rate_factor",
                         by_group[by_group.size() == 1 ? 0 : i] * std::max(largest_factor_[i], 0.0));
  on_host_.assign(largest_factor_.size(), by_group[0]);
  if (by_group.size() > 1) std::copy(by_group.begin(), by_group.end(), on_host_.begin());
  elsewhere_ = nullptr;
}

SLAMB_DECL void learning_rates::set(const device_learning_rates& rates) {
  if (rates.by_group == nullptr)
    throw std::invalid_argument(
        "slamb: step() was given device_learning_rates with a null pointer, but it must point to a rate for each "
        "group");
  elsewhere_ = rates.by_group;
}

SLAMB_DECL std::vector<double> learning_rates::read(const machine& on, const stream_waiter& ranks) const {
  if (elsewhere_ == nullptr) return on_host_;
  std::vector<double> all(largest_factor_.size());
  on.download(std::as_bytes(std::span(elsewhere_, all.size())), std::as_writable_bytes(std::span(all)), ranks);
  return all;
}

SLAMB_DECL void learning_rates::store(const arena& memory, const machine& on, step_record* record,
                                      function_ref<void(const write_learning_rates&)> invoke) const {
  constexpr std::size_t most_groups = 4 * write_learning_rates::most_values;
  double* const to = memory.view(stored_).data();
  if (elsewhere_ != nullptr)
    return invoke(write_learning_rates{record, to, elsewhere_, memory.view(factors_).data(), largest_factor_.size()});
  if (on_host_.size() > most_groups) {
    on.upload(std::span<const double>(on_host_), memory.view(stored_));
    return invoke(write_learning_rates{record, to, nullptr, nullptr, 0, hash_of_rates(), true});
  }
  std::size_t first = 0;
  do {
    write_learning_rates part{record, to + first, nullptr, nullptr,
                              std::min(write_learning_rates::most_values, on_host_.size() - first)};
    std::copy_n(on_host_.data() + first, part.count, part.value);
    part.hash = hash_of_rates();
    part.adds_hash = first == 0;
    invoke(part);
    first += part.count;
  } while (first < on_host_.size());
}

// A hash of the rates of groups that have tensors.
SLAMB_DECL std::uint64_t learning_rates::hash_of_rates() const noexcept {
  std::uint64_t hash = hash_of_nothing;
  for (std::size_t i = 0; i < on_host_.size(); ++i)
    if (largest_factor_[i] >= 0.0) hash = hash_with(hash, write_learning_rates::word_of(on_host_[i]));
  return hash;
}

}  // namespace slamb::detail
