// Ranks as processes, started by mpirun or another launcher of MPI programs. A build without MPI has none.
#pragma once

#include <memory>
#include <vector>

#include "../common/processes.hpp"
#include "training.hpp"

namespace train {

/// The processes of this run; null unless a launcher has started this program as one of several ranks.
///
/// @throws std::runtime_error if a launcher has, and the program was built without MPI
std::unique_ptr<programs::processes> find_processes(int& argc, char**& argv);

/// A rank_runner: each rank in its own process, which includes this one.
std::vector<outcome> run_processes(const rank_grid& grid, const rank_body& body);

}  // namespace train
