// The settings of `choose`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "slamb/core/error.hpp"
#include "slamb/core/saved_state.hpp"

namespace slamb {

/// Which optimizer `choose` keeps.
enum class keep_rule {
  measure,    ///< the compressed one if it was measured to be faster, else the dense one
  dense,      ///< without a trial
  compressed  ///< without a trial
};

/// Settings of `choose`, the same on all ranks but for `saved`.
struct choose_options {
  keep_rule keep = keep_rule::measure;
  double margin = 0.05;      ///< in [0, 1): part of the dense step's time that a compressed step must save
  std::uint64_t steps = 4;   ///< ≥ 1: of each optimizer that are timed in a round
  std::uint64_t rounds = 2;  ///< ≥ 1: the optimizers take turns, so that a slow moment does not meet one of them alone
  std::uint64_t most_elements = 16'777'216;  ///< ≥ 1: of the scratch tensors, about; larger models are scaled down
  std::uint64_t training_steps = 100'000;    ///< ≥ 1: over which a schedule that grows is averaged: 0/1 Adam's
  std::span<const std::byte> saved{};  ///< a state to go on from, whose optimizer is kept without a trial; empty: none
  restore_options restore{};           ///< of `saved`

  /// @throws std::invalid_argument
  void validate() const {
    const auto require_one = [](const char* name, std::uint64_t value) {
      detail::require_in(value >= 1, std::string("choose_options's ") + name, static_cast<double>(value), ">= 1");
    };
    detail::require_in(keep >= keep_rule::measure && keep <= keep_rule::compressed, "choose_options's keep",
                       static_cast<double>(keep), "measure, dense or compressed");
    detail::require_in(margin >= 0.0 && margin < 1.0, "choose_options's margin", margin, "in [0, 1)");
    require_one("steps", steps);
    require_one("rounds", rounds);
    require_one("most_elements", most_elements);
    require_one("training_steps", training_steps);
  }
};

}  // namespace slamb
