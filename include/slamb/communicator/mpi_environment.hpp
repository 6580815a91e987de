// MPI from beginning to end of a program, also of one that fails.
#pragma once

#include <mpi.h>

#include <exception>

#include "slamb/communicator/mpi_error.hpp"
#include "slamb/communicator/mpi_handle.hpp"

namespace slamb {

/// Starts MPI, and ends it with its scope. For programs whose MPI is nobody else's:
///
///     int main(int argc, char** argv) try {
///       slamb::mpi_environment mpi(argc, argv);
///       slamb::lamb optimizer(parameters, options, slamb::mpi_communicator());
///
/// Where that scope ends by an exception, or an mpi_communicator has failed, the program is ended by MPI_Abort, on all
/// ranks and with exit status 1: MPI_Finalize would wait for ranks that are not there any more. Catch and print
/// exceptions inside of the scope, then, as they would not be seen outside of it.
class mpi_environment {
 public:
  /// Asks for MPI_THREAD_FUNNELED: collectives from the thread that made this. MPI must not have been started.
  /// @throws mpi_error
  mpi_environment(int& argc, char**& argv) : exceptions_(std::uncaught_exceptions()) {
    int provided = MPI_THREAD_SINGLE;
    const int code = MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Init_thread", "mpi_environment");
  }
  mpi_environment(const mpi_environment&) = delete;
  mpi_environment& operator=(const mpi_environment&) = delete;
  ~mpi_environment() {
    const bool failed = detail::mpi_handle::any_has_failed() || std::uncaught_exceptions() > exceptions_;
    static_cast<void>(failed ? MPI_Abort(MPI_COMM_WORLD, 1) : MPI_Finalize());
  }

 private:
  int exceptions_;  // under way when this was made
};

}  // namespace slamb
