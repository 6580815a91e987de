// Every optimizer that the program knows: the table, and what --optimizer and --compressor make of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rank_optimizer.hpp"
#include "settings.hpp"

namespace train {

/// An optimizer: its name, the peak learning rate that suits it here, and how to make one for a rank.
struct optimizer_entry {
  std::string name;
  double learning_rate = 0.0;
  optimizer_maker (*maker)(const settings& chosen, std::uint64_t seed) = nullptr;
};

/// The names that --optimizer knows, in the order of the table.
std::vector<std::string_view> optimizer_names();

/// The names that --compressor knows.
std::vector<std::string_view> compressor_names();

/// What a run of the program compares: the optimizers that were named, all but auto if none was, each with every compressor that
/// was named, or with its own if none was. All optimizers with a compressor are all that take it.
///
/// @throws usage_error for a combination that there is not; it lists what there is.
std::vector<optimizer_entry> choose_optimizers(const settings& chosen);

}  // namespace train
