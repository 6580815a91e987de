// What slamb_train keeps in a folder, so that a run that was stopped goes on from there and ends as if it had not been:
//
//     DIR/settings.txt                                  what the runs were started with
//     DIR/slamb-seed1/rank0-step100.slamb, .progress    a rank's optimizer and parameters, and its part of the report so far
//
// Ranks write a step's files, wait for each other, and then delete those of the step before: at any time there is a step of which
// all ranks have theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "digits.hpp"
#include "rank_optimizer.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace train {

/// Prepares the folder of --checkpoint for a run that begins, or finds that a run can go on from it.
///
/// @throws usage_error where there are checkpoints of another run, or none to go on from, or those of a run with other settings;
///         output_error where the folder does not take files
void prepare_checkpoints(const settings& chosen, const split_digits& data);

/// The checkpoints of one rank in a training.
class rank_checkpoints {
 public:
  /// @param folder  of the training; made where it is not there
  /// @throws output_error
  rank_checkpoints(const std::filesystem::path& folder, int rank, int ranks);

  /// Restores the optimizer, its parameters and `result` as they were after the last step of which all ranks have files.
  /// Collective. @return that step; 0: there is none, and nothing has been restored
  /// @throws what `load_checkpoint` throws; std::runtime_error naming a file that is not as it was written
  std::uint64_t go_on(rank_optimizer& optimizer, outcome& result) const;

  /// Keeps what is there after `step`. Collective.
  /// @throws what `save_checkpoint` throws; output_error
  void keep(std::uint64_t step, rank_optimizer& optimizer, const outcome& result) const;

 private:
  std::filesystem::path file(std::uint64_t step, const char* ending) const;
  std::uint64_t newest() const;
  void remove_others_together(std::uint64_t step, rank_optimizer& optimizer) const;
  void remove_others(std::uint64_t step) const;

  std::filesystem::path folder_;
  int rank_;
  int ranks_;
};

/// What a run has been up to a step, with what the optimizer says of the steps since: traffic is counted by each from its start.
slamb::statistics joined(const slamb::statistics& before, const slamb::statistics& since);

}  // namespace train
