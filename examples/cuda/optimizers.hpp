// The optimizers that the example knows. Plain C++: what has to be compiled by nvcc is behind train::rank_optimizer.
#pragma once

#include <span>
#include <string_view>

#include "../train/rank_optimizer.hpp"
#include "../train/settings.hpp"

namespace cuda_example {

/// An optimizer: its name, the peak learning rate that slamb_train has for it, and how to make one for a rank.
struct device_recipe {
  std::string_view name;
  double learning_rate;
  train::optimizer_maker (*maker)(const train::settings& chosen);
};

/// All of them.
std::span<const device_recipe> device_recipes();

}  // namespace cuda_example
