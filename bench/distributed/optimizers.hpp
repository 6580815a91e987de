// The optimizers that slamb_bench_mpi measures, by name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measurement.hpp"

namespace bench::distributed {

/// An optimizer and the function that measures it.
struct measured_optimizer {
  std::string_view name;
  measurement (*measure)(const scene&, const std::string& name);
};

/// The optimizers that sum floats, and those that exchange codes of every element; each group has its own source file.
std::span<const measured_optimizer> optimizers_of_floats();
std::span<const measured_optimizer> optimizers_of_codes();

/// All optimizers.
std::vector<measured_optimizer> all_optimizers();
std::vector<std::string_view> optimizer_names();

/// @throws std::invalid_argument for an unknown name
measurement measure_optimizer(const scene& at, const std::string& name);

}  // namespace bench::distributed
