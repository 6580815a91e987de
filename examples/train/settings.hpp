// The settings of the command line, with their defaults.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <slamb/schedule/learning_rate.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// The path of the data if the program runs in the root of the source tree. The build may set a better path.
#ifndef SLAMB_TRAIN_DATA
#define SLAMB_TRAIN_DATA "examples/data/digits.csv"
#endif

namespace train {

constexpr std::array<std::string_view, 4> schedule_names{"constant", "polynomial", "cosine", "step"};
constexpr std::array<std::string_view, 3> precision_names{"float32", "bf16", "fp16"};
constexpr std::array<std::string_view, 2> rounding_names{"masters", "stochastic"};

/// Settings of one run of the program. An empty string means that the file is not wanted.
struct settings {
  std::vector<std::string> optimizers;   ///< names, in the order of the table; empty: all
  std::vector<std::string> compressors;  ///< names; empty: each optimizer's own
  int ranks = 4;                         ///< that hold the same shard, or the whole model
  int shards = 1;                        ///< of the model; each of them is on as many ranks
  std::uint64_t batch = 256;             ///< images per step, over all ranks
  std::uint64_t steps = 300;
  std::optional<double> learning_rate;  ///< unset: each optimizer's own default
  std::string schedule = "cosine";
  std::optional<std::uint64_t> warmup;  ///< steps; unset: a tenth of `steps`
  double weight_decay = 0.01;
  std::string precision = "float32";    ///< of the stored parameters and gradients
  std::optional<std::string> rounding;  ///< of parameters of 16 bits; unset: masters
  std::optional<double> loss_scale;     ///< unset: 1024 for fp16, else 1
  std::uint64_t seed = 1;               ///< of the first run
  std::uint64_t seeds = 5;              ///< number of runs, one after another
  bool held_out = false;                ///< a fifth of the training set stands in for the test set
  double k = 0.1;
  std::uint64_t block = 1;
  double beta3 = 0.93;
  std::string update_bound = "adam";               ///< or "off", or a number
  std::optional<std::uint64_t> local_steps;        ///< H; unset: 50, of slamb_by_differences 2
  std::optional<double> one_bit_epsilon;           ///< unset: the optimizer's own
  std::optional<std::uint64_t> one_bit_warmup;     ///< steps; unset: a fifth of `steps`
  std::optional<double> one_bit_threshold;         ///< unset: the warm-up lasts one_bit_warmup
  std::optional<std::uint64_t> freeze_step;        ///< unset: a fifth of `steps`
  std::uint64_t variance_update_scaler = 16;       ///< κ
  std::optional<std::uint64_t> local_step_scaler;  ///< steps; unset: a fifth of `steps`
  std::uint64_t local_step_clipper = 16;           ///< the longest interval
  std::string data = SLAMB_TRAIN_DATA;
  std::string json;
  std::string csv;
  std::string plot;
  std::string checkpoint;                         ///< a folder
  std::optional<std::uint64_t> checkpoint_every;  ///< steps; unset: a tenth of `steps`
  bool resume = false;
  bool hash = false;  ///< print the hashes of the final parameters

  int all_ranks() const { return ranks * shards; }
  bool has_16_bits() const { return precision != "float32"; }
  std::string rounding_mode() const { return rounding.value_or("masters"); }
  /// fp16 has no numbers below 6e-8, and many gradients are smaller.
  float scale_of_loss() const { return static_cast<float>(loss_scale.value_or(precision == "fp16" ? 1024.0 : 1.0)); }
  /// H of SLAMB, and of SLAMB by differences. @{
  std::uint64_t averaging_interval() const { return local_steps.value_or(50); }
  std::uint64_t difference_interval() const { return local_steps.value_or(2); }
  /// @}
  /// The option of this name of SLAMB and the 1-bit and 0/1 optimizers.
  double bound_of_updates() const {
    if (update_bound == "adam") return 0.0;
    return update_bound == "off" ? std::numeric_limits<double>::infinity() : std::stod(update_bound);
  }
  std::uint64_t warmup_steps() const { return warmup.value_or(steps / 10); }
  std::uint64_t one_bit_warmup_steps() const { return one_bit_warmup.value_or(fifth_of_steps()); }
  std::uint64_t variance_freeze_step() const { return freeze_step.value_or(fifth_of_steps()); }
  std::uint64_t checkpoint_interval() const {
    return checkpoint_every.value_or(std::max<std::uint64_t>(1, steps / 10));
  }
  std::uint64_t local_interval_scaler() const { return local_step_scaler.value_or(fifth_of_steps()); }

 private:
  std::uint64_t fifth_of_steps() const { return std::max<std::uint64_t>(1, steps / 5); }
};

using schedule_function = std::function<double(std::uint64_t)>;

/// The learning rate by step for `peak`: warm-up, then the schedule over the rest of the steps.
inline schedule_function make_schedule(const settings& chosen, double peak) {
  const std::uint64_t warmup = chosen.warmup_steps();
  const std::uint64_t rest = chosen.steps - warmup;
  const auto after_warmup = [warmup](auto schedule) {
    return slamb::learning_rate::linear_warmup<decltype(schedule)>{warmup, schedule};
  };
  if (chosen.schedule == "constant") return after_warmup(slamb::learning_rate::constant{peak});
  if (chosen.schedule == "polynomial")
    return after_warmup(slamb::learning_rate::polynomial_decay{.peak = peak, .steps = rest});
  if (chosen.schedule == "cosine") return after_warmup(slamb::learning_rate::cosine_decay{.peak = peak, .steps = rest});
  if (chosen.schedule == "step") {  // a tenth of the rate after each third
    return after_warmup(slamb::learning_rate::step_decay{.initial = peak, .factor = 0.1, .every = (rest + 2) / 3});
  }
  throw std::invalid_argument("no schedule is named '" + chosen.schedule + "'");
}

}  // namespace train
