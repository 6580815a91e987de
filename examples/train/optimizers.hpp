// All optimizers of the program: the table, and the choice by --optimizer and --compressor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rank_optimizer.hpp"
#include "settings.hpp"

namespace train {

/// An optimizer: its name, its peak learning rate here, and a function that makes it for a rank.
struct optimizer_entry {
  std::string name;
  double learning_rate = 0.0;
  optimizer_maker (*maker)(const settings& chosen, std::uint64_t seed) = nullptr;
};

/// The names for --optimizer, in the order of the table.
std::vector<std::string_view> optimizer_names();

/// The names for --compressor.
std::vector<std::string_view> compressor_names();

/// The optimizers that a run compares. Without names, all but slamb_by_differences and auto; each with every named compressor,
/// or with its own if none is named. All optimizers with a compressor means all that accept it.
///
/// @throws usage_error for a combination that does not exist; it lists those that do
std::vector<optimizer_entry> choose_optimizers(const settings& chosen);

}  // namespace train
