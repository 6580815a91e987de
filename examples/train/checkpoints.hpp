// What slamb_train keeps in a folder, so that a run that was stopped goes on from there and ends as if it had not been:
//
//     DIR/settings.txt                                  what the runs were started with
//     DIR/slamb-seed1/rank0-step100.slamb, .progress    a rank's optimizer and parameters, and its part of the report so far
//
// Ranks write a step's files, the progress first, wait until they are on the disk and for each other, and then delete those of the
// step before: from the first of all ranks on, there is at any time a step of which all ranks have theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../common/output_file.hpp"
#include "digits.hpp"
#include "rank_optimizer.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace train {

using programs::output_error;

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
  /// Collective.
  ///
  /// @param say  is told where some ranks have a checkpoint, their first, and others have none: the training begins anew then
  /// @return that step; 0: there is none, and nothing has been restored
  /// @throws what `load_checkpoint` throws; std::runtime_error naming a file that is not as it was written, or, on all ranks, the
  ///         folder and the rank of which files have been lost
  std::uint64_t go_on(rank_optimizer& optimizer, outcome& result, const std::function<void(const std::string&)>& say);

  /// Keeps what is there after `step`. Collective.
  /// @throws what `save_checkpoint` throws; output_error
  void keep(std::uint64_t step, rank_optimizer& optimizer, const outcome& result);

 private:
  std::filesystem::path file(std::uint64_t step, const char* ending) const;
  std::uint64_t newest() const;
  std::vector<std::uint64_t> of_all_ranks(std::uint64_t own, rank_optimizer& optimizer) const;
  void require_none_lost(const std::vector<std::uint64_t>& newest, rank_optimizer& optimizer,
                         const std::function<void(const std::string&)>& say) const;
  void remove_others_together(std::uint64_t step, rank_optimizer& optimizer) const;
  void remove_others(std::uint64_t step) const;

  std::filesystem::path folder_;
  int rank_;
  int ranks_;
  std::uint64_t last_ = 0;  // step that was kept, or gone on from
};

/// What a run has been up to a step, with what the optimizer says of the steps since: traffic is counted by each from its start.
slamb::statistics joined(const slamb::statistics& before, const slamb::statistics& since);

}  // namespace train
