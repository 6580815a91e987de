// Checkpoints of slamb_train in a folder, so that a run that was stopped can continue and end with the same results:
//
//     DIR/settings.txt                                  the settings of the runs
//     DIR/slamb-seed1/rank0-step100.slamb, .progress    a rank's optimizer and parameters, and its part of the report so far
//
// Each rank writes the files of a step, the progress file first, and flushes them to the disk. When all ranks have done so,
// each deletes its files of the previous step. So from the first checkpoint on, there is always a step for which all ranks have
// files.
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

/// Prepares the folder of --checkpoint for a new run, or checks that a run can continue from it.
///
/// @throws usage_error if the folder has checkpoints of another run, none to continue from, or checkpoints with other settings;
///   output_error if the folder does not accept files
void prepare_checkpoints(const settings& chosen, const split_digits& data);

/// The checkpoints of one rank in a training.
class rank_checkpoints {
 public:
  /// @param folder  of the training; made if it does not exist
  /// @throws output_error
  rank_checkpoints(const std::filesystem::path& folder, int rank, int ranks);

  /// Restores the optimizer, its parameters and `result` as they were after the last step for which all ranks have files.
  /// Collective.
  ///
  /// @param say  called if some ranks have only their first checkpoint and others have none: the training then begins anew
  /// @return that step; 0: there is none, and nothing has been restored
  /// @throws the exceptions of `load_checkpoint`; std::runtime_error naming a damaged file, or, on all ranks, the folder and
  ///   the rank whose files have been lost
  std::uint64_t go_on(rank_optimizer& optimizer, outcome& result, const std::function<void(const std::string&)>& say);

  /// Writes a checkpoint after `step`. Collective.
  /// @throws the exceptions of `save_checkpoint`; output_error
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
  std::uint64_t last_ = 0;  // last step that was kept or restored
};

/// The statistics of a whole run: those up to a checkpoint, and those of the optimizer since, which counts from its
/// construction.
slamb::statistics joined(const slamb::statistics& before, const slamb::statistics& since);

}  // namespace train
