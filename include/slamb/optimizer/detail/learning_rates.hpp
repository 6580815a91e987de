// The learning rates of a step: γ by group, in the backend's memory, where passes read them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/optimizer/device_learning_rates.hpp"

namespace slamb::detail {

/// Writes learning rates to the memory that passes read, and adds them to the history of steps; for an executor to invoke. A rate
/// from device memory that is negative or not finite, also after the factor of a tensor, has the effect of a gradient that is not
/// finite.
struct write_learning_rates {
  static constexpr std::size_t most_values = 16;

  step_record* record = nullptr;
  double* to = nullptr;          ///< [count]
  const double* from = nullptr;  ///< [count] in the backend's memory; null: `value`, already checked
  const double* largest_factor =
      nullptr;  ///< [count] largest learning_rate_factor of the group's tensors; negative: the group has none
  std::size_t count = 0;
  std::uint64_t hash = 0;  ///< of all rates that come from the host
  bool adds_hash = false;  ///< true for the one part of the rates that adds `hash` to the history
  double value[most_values] = {};

  SLAMB_HOST_DEVICE static bool is_usable(double rate) { return rate >= 0.0 && rate <= 3.4028234663852886e38; }
  /// The bits of a rate by which ranks compare it: of the float that updates use.
  SLAMB_HOST_DEVICE static std::uint64_t word_of(double rate) { return as_word(static_cast<float>(rate) + 0.0F); }
  SLAMB_HOST_DEVICE void operator()() const {
    std::uint64_t found = hash_of_nothing;
    for (std::size_t i = 0; i < count; ++i) {
      const double rate = from == nullptr ? value[i] : from[i];
      if (from != nullptr && largest_factor[i] >= 0.0 && !is_usable(rate * largest_factor[i])) record->not_finite = 1;
      if (from != nullptr && largest_factor[i] >= 0.0) found = hash_with(found, word_of(rate));
      to[i] = rate;
    }
    if (from != nullptr || adds_hash) record->history = hash_with(record->history, from == nullptr ? hash : found);
  }
};

/// The learning rates of one optimizer. Rates from the host travel as arguments of the invoked function, unless there are very
/// many groups.
class learning_rates {
 public:
  explicit learning_rates(const layout& tensors) : largest_factor_(tensors.groups(), -1.0) {
    for (const segment& s : tensors.segments())
      largest_factor_[s.group] = std::max(largest_factor_[s.group], static_cast<double>(s.learning_rate_factor));
    on_host_.reserve(tensors.groups());
  }

  void plan(arena& memory) {
    stored_ = memory.plan<double>("learning rates", largest_factor_.size());
    factors_ = memory.plan<double>("learning rates", largest_factor_.size());
  }
  /// Fills the tables, once the memory is there.
  template <class Executor>
  void start(const arena& memory, const Executor& executor) const {
    executor.upload(std::span<const double>(largest_factor_), memory.view(factors_));
  }

  /// Sets the rates of the next step.
  /// @param by_group  [groups], or one for all
  /// @throws std::invalid_argument
  void set(std::span<const double> by_group) {
    if (by_group.size() != 1 && by_group.size() != largest_factor_.size())
      throw std::invalid_argument("slamb: step() was given " + std::to_string(by_group.size()) +
                                  " learning rates, but there are " + std::to_string(largest_factor_.size()) +
                                  " groups");
    for (const double rate : by_group) require_non_negative("the learning rate", rate);
    for (std::size_t i = 0; i < largest_factor_.size(); ++i)
      require_non_negative("the learning rate times learning_rate_factor",
                           by_group[by_group.size() == 1 ? 0 : i] * std::max(largest_factor_[i], 0.0));
    on_host_.assign(largest_factor_.size(), by_group[0]);
    if (by_group.size() > 1) std::copy(by_group.begin(), by_group.end(), on_host_.begin());
    elsewhere_ = nullptr;
  }
  /// @throws std::invalid_argument
  void set(const device_learning_rates& rates) {
    if (rates.by_group == nullptr)
      throw std::invalid_argument(
          "slamb: step() was given device_learning_rates with a null pointer, but it must point to a rate for each "
          "group");
    elsewhere_ = rates.by_group;
  }

  /// γ of a tensor in this step, rounded as passes use it. Only for rates from the host.
  double of(const segment& s) const noexcept {
    return static_cast<double>(static_cast<float>(on_host_[s.group] * static_cast<double>(s.learning_rate_factor)));
  }

  const double* stored(const arena& memory) const noexcept { return memory.view(stored_).data(); }

  /// True if the group has tensors.
  bool has_tensors(std::size_t group) const noexcept { return largest_factor_[group] >= 0.0; }

  /// [groups] the rates of the next step. Waits if they are in the backend's memory.
  template <class Executor>
  std::vector<double> read(const Executor& executor, const typename Executor::ranks_type& ranks) const {
    if (elsewhere_ == nullptr) return on_host_;
    std::vector<double> all(largest_factor_.size());
    executor.download(std::as_bytes(std::span(elsewhere_, all.size())), std::as_writable_bytes(std::span(all)), ranks);
    return all;
  }

  /// Calls invoke(write_learning_rates) for each part of the rates, at least once. The step must invoke all of these.
  template <class Executor, class Invoke>
  void store(const arena& memory, const Executor& executor, step_record* record, const Invoke& invoke) const {
    constexpr std::size_t most_groups = 4 * write_learning_rates::most_values;
    double* const to = memory.view(stored_).data();
    if (elsewhere_ != nullptr)
      return invoke(write_learning_rates{record, to, elsewhere_, memory.view(factors_).data(), largest_factor_.size()});
    if (on_host_.size() > most_groups) {
      executor.upload(std::span<const double>(on_host_), memory.view(stored_));
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

 private:
  // A hash of the rates of groups that have tensors.
  std::uint64_t hash_of_rates() const noexcept {
    std::uint64_t hash = hash_of_nothing;
    for (std::size_t i = 0; i < on_host_.size(); ++i)
      if (largest_factor_[i] >= 0.0) hash = hash_with(hash, write_learning_rates::word_of(on_host_[i]));
    return hash;
  }

  std::vector<double> largest_factor_;  // [groups]; -1: no tensors
  std::vector<double> on_host_;         // [groups]
  const double* elsewhere_ = nullptr;
  region<double> stored_;
  region<double> factors_;
};

}  // namespace slamb::detail
