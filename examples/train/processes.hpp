// Ranks that are processes, started by mpirun or another launcher of MPI programs. Without MPI there are none.
#pragma once

#include <memory>

#include "training.hpp"

namespace train {

/// The processes of this run, of which this is one, from the start of MPI to its end.
class processes {
 public:
  processes() = default;
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  virtual ~processes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns when all processes have called it; where one of them is ended instead, all are.
  virtual void meet() = 0;
  /// Trains with them.
  virtual rank_runner runner() = 0;
  /// Ends all processes with this exit status, at once.
  [[noreturn]] virtual void end_all(int status) = 0;
};

/// Null unless a launcher has started this program as one of several ranks.
///
/// @throws std::runtime_error if it has, and the program was built without MPI
std::unique_ptr<processes> find_processes(int& argc, char**& argv);

}  // namespace train
