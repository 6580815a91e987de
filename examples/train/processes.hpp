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
  /// Called by all processes, once, before they train, each with its exit status so far. Returns the largest.
  virtual int meet(int status) = 0;
  virtual bool have_met() const = 0;
  /// Whether the status of one of them was not 0 then.
  virtual bool start_failed() const = 0;
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
