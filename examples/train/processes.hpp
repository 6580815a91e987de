// Ranks that are processes, started by mpirun or another launcher of MPI programs. Without MPI there are none.
#pragma once

#include <memory>
#include <vector>

#include "../common/processes.hpp"
#include "training.hpp"

namespace train {

/// Null unless a launcher has started this program as one of several ranks.
///
/// @throws std::runtime_error if it has, and the program was built without MPI
std::unique_ptr<programs::processes> find_processes(int& argc, char**& argv);

/// Each rank in a process of its own, of which this is one: a rank_runner.
std::vector<outcome> run_processes(int ranks, const rank_body& body);

}  // namespace train
