// The settings of the command line, with their defaults.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <slamb/plan/network.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace plan {

/// True for an optimizer with sync::partition, which cuts whole tensors itself.
inline bool is_partitioned(std::string_view optimizer) {
  return optimizer.find("+partition") != std::string_view::npos;
}

inline constexpr std::array<std::string_view, 3> precision_names{"float32", "bf16", "fp16"};
inline constexpr std::array<std::string_view, 2> rounding_names{"masters", "stochastic"};
inline constexpr std::array<std::string_view, 3> moments_names{"float32", "bf16-momentum", "8-bit"};

/// Settings of one run of the program.
struct settings {
  std::string model = "bert-large";
  std::string shapes;                   ///< a file used instead of the model; empty: none
  std::vector<std::string> optimizers;  ///< names, in the order of the table
  std::uint64_t steps = 118'000;
  int ranks = 64;                             ///< that hold the same shard, or the whole model
  int shards = 1;                             ///< of the model; each of them is on as many ranks
  std::uint64_t value_bytes = 4;              ///< of an element that is summed
  std::string precision = "float32";          ///< of the stored parameters and gradients
  std::optional<std::string> rounding;        ///< of parameters of 16 bits; unset: masters
  std::string moments = "float32";            ///< how m and v are stored
  double k = 0.1;                             ///< SLAMB
  std::uint64_t local_steps = 100;            ///< SLAMB: H
  std::optional<std::uint64_t> warmup_steps;  ///< 1-bit; unset: 1000 of 5993, as 1-bit LAMB's paper has for BERT
  std::optional<std::uint64_t> freeze_step;   ///< 0/1 Adam; unset: 12,500 of 118,000, as its paper has for BERT
  std::uint64_t variance_update_scaler = 16;  ///< 0/1 Adam: κ
  std::uint64_t local_step_scaler = 32'678;   ///< 0/1 Adam
  std::uint64_t local_step_clipper = 16;      ///< 0/1 Adam
  slamb::plan::network network;
  double memory_bandwidth = 1.5e12;  ///< bytes/s, of a rank
  double compute_seconds = 0.2;      ///< of a step, forward and backward
  std::string json;                  ///< a file; empty: not wanted

  std::string rounding_mode() const { return rounding.value_or("masters"); }
  std::uint64_t warmup() const { return warmup_steps.value_or(part_of_steps(1000.0 / 5993.0)); }
  long long all_ranks() const { return static_cast<long long>(ranks) * shards; }
  std::uint64_t freeze() const { return freeze_step.value_or(part_of_steps(12'500.0 / 118'000.0)); }

 private:
  std::uint64_t part_of_steps(double part) const {
    const auto rounded = static_cast<std::uint64_t>(std::llround(part * static_cast<double>(steps)));
    return rounded == 0 ? 1 : rounded;
  }
};

}  // namespace plan
