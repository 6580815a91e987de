// Ranks as processes, started by mpirun or another launcher: they start together, and end together.
#pragma once

#include <fstream>
#include <iostream>

namespace programs {

/// The processes of this run; the object represents this process among them.
class processes {
 public:
  processes() = default;
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  virtual ~processes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Ends all processes at once with this exit status.
  virtual void end_all(int status) = 0;

  /// Called once by all processes before they work together, each with its exit status so far. Returns the largest.
  int meet(int status) {
    have_met_ = true;
    first_status_ = largest_of_all(status);
    return first_status_;
  }

  /// Calls body(), which returns an exit status and calls `meet`. Only the first process writes to the standard output.
  ///
  /// If body() fails before `meet`, all processes learn of it and end normally. A failure after `meet` may be on one process
  /// alone, so it ends all processes.
  template <class Body>
  int run(const Body& body) {
    static std::ofstream nowhere("/dev/null");
    if (rank() != 0) std::cout.rdbuf(nowhere.rdbuf());
    const int status = body();
    if (status != 0 && !have_met_) return meet(status);
    if (status != 0 && first_status_ == 0) end_all(status);
    return status;
  }

 private:
  virtual int largest_of_all(int status) = 0;

  bool have_met_ = false;
  int first_status_ = 0;
};

}  // namespace programs
