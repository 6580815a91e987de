// One training run: N ranks, threads or processes, each with its own copy of the model and its own part of the data. With shards,
// each of the N copies is held by S ranks together. Ranks share data only through the optimizer and its communicator. The code
// does not depend on the type of the optimizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <slamb/core/statistics.hpp>
#include <string>
#include <vector>

#include "digits.hpp"
#include "rank_optimizer.hpp"
#include "settings.hpp"

namespace train {

inline constexpr std::array<std::size_t, 4> layer_widths{pixels_per_image, 256, 128, classes};

/// The number of parameters of a network with these widths: weights and biases.
constexpr std::uint64_t parameters_of_network() {
  std::uint64_t all = 0;
  for (std::size_t i = 1; i < layer_widths.size(); ++i) all += (layer_widths[i - 1] + 1) * layer_widths[i];
  return all;
}

/// The task of a run.
struct task {
  const settings& chosen;
  const split_digits& data;
  std::uint64_t seed = 1;
  double learning_rate = 0.0;
  std::function<void(std::uint64_t step)> progress;  ///< called by one thread after each step, also for restored steps
  std::filesystem::path checkpoints{};               ///< the folder of its checkpoints; empty: none
  std::function<void(const std::string&)> say{};     ///< rank 0 calls it with messages for the user, if set
};

/// The state of a run after one step.
struct curve_point {
  double loss = 0.0;             ///< over the step's whole batch, before the step
  std::uint64_t sent_bytes = 0;  ///< by rank 0, since the start; the last step includes the final synchronization
  std::uint64_t rounds = 0;      ///< collectives, counted likewise
  std::size_t phase = 0;         ///< index of the step's phase in `statistics.phases`
};

/// The result of a run.
struct outcome {
  std::string optimizer;
  std::uint64_t seed = 0;
  double learning_rate = 0.0;
  double untrained_loss = 0.0;  ///< over the training set, before the first step
  double final_loss = 0.0;      ///< over the training set, at the end
  double test_accuracy = 0.0;   ///< at the end
  double seconds = 0.0;         ///< time of the steps of rank 0
  std::uint64_t parameter_hash = 0;
  slamb::statistics statistics{};  ///< of rank 0
  /// Of rank 0 within its shard group: gathered parameters, and sums of gradients. The optimizer does not count it.
  slamb::traffic of_model{};
  std::vector<curve_point> curve;  ///< [steps]
};

/// The work of one rank. With shards, the communicator holds a sharded_communicator.
using rank_body = std::function<outcome(rank_communicator)>;

/// N ranks that hold the same shard, for each of S shards.
struct rank_grid {
  int ranks = 1;
  int shards = 1;

  int size() const { return ranks * shards; }
  /// The number of a rank: those of a shard group follow one another.
  static int number_of(const rank_communicator& rank) { return rank.rank() * rank.shard_size() + rank.shard_rank(); }
};

/// Runs the body on all ranks at once and returns their outcomes, [grid.size()]. Outcomes of ranks in other processes have only
/// losses and a hash.
using rank_runner = std::function<std::vector<outcome>(const rank_grid& grid, const rank_body& body)>;

/// A rank_runner: each rank on a thread of this process.
std::vector<outcome> run_threads(const rank_grid& grid, const rank_body& body);

/// Trains with a fresh optimizer on every rank.
///
/// @throws the exception of a rank; std::runtime_error if ranks end with different parameters
outcome train(const task& work, const optimizer_maker& make_optimizer, const rank_runner& run_ranks = run_threads);

}  // namespace train
