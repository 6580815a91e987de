// Every optimizer that the program knows, by name: one entry each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <slamb/slamb.hpp>
#include <string_view>

#include "training.hpp"

namespace train {

/// An optimizer: its name, the peak learning rate that suits it here, and how to train with it.
struct optimizer_entry {
  std::string_view name;
  double learning_rate;
  outcome (*train)(const task& work);
};

// Each learning rate is the one of 0.002, 0.005, 0.01, 0.02, 0.05 with the best mean accuracy over 3 seeds on a fifth
// of the training set that was held out for this choice, with the other settings at their defaults. The test set had no
// part.
inline constexpr std::array optimizers{
    optimizer_entry{"lamb", 0.01,
                    [](const task& work) {
                      using optimizer = slamb::lamb<slamb::thread_communicator>;
                      return train_with<optimizer>(work, {.weight_decay = work.chosen.weight_decay});
                    }},
    optimizer_entry{"adamw", 0.02,
                    [](const task& work) {
                      using optimizer = slamb::adamw<slamb::thread_communicator>;
                      return train_with<optimizer>(work, {.weight_decay = work.chosen.weight_decay});
                    }},
    optimizer_entry{
        "slamb", 0.02,
        [](const task& work) {
          using optimizer = slamb::slamb<slamb::thread_communicator>;
          return train_with<optimizer>(
              work, {.beta3 = work.chosen.beta3,
                     .weight_decay = work.chosen.weight_decay,
                     .local_steps = static_cast<std::int64_t>(work.chosen.local_steps),
                     .compressor = {
                         .k = work.chosen.k, .block = static_cast<std::size_t>(work.chosen.block), .seed = work.seed}});
        }},
};

/// The entry of that name, or nullptr.
inline const optimizer_entry* find_optimizer(std::string_view name) {
  const auto* found = std::ranges::find(optimizers, name, &optimizer_entry::name);
  return found == optimizers.end() ? nullptr : found;
}

/// The names, in the order of the table.
inline std::array<std::string_view, optimizers.size()> optimizer_names() {
  std::array<std::string_view, optimizers.size()> names;
  std::ranges::transform(optimizers, names.begin(), &optimizer_entry::name);
  return names;
}

}  // namespace train
