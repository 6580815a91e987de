// Starts MPI and ends it with the program, also with a program that fails.
#pragma once

#include <mpi.h>

#include <exception>

#include "slamb/communicator/detail/mpi_handle.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Starts MPI, and ends it at the end of its scope. For programs that do not use MPI otherwise:
///
///     int main(int argc, char** argv) {
///       slamb::mpi_environment mpi(argc, argv);
///       try {
///         train(slamb::mpi_communicator());
///       } catch (const std::exception& failure) {
///         std::fprintf(stderr, "%s\n", failure.what());
///         return 1;
///       }
///     }
///
/// If an mpi_communicator has failed, or an exception has destroyed one or leaves this scope, the destructor calls MPI_Abort
/// with exit status 1 instead of MPI_Finalize, because MPI_Finalize would wait for ranks that do not come. MPI_Abort also ends
/// the other ranks, unless the launcher is configured not to end them. So catch and print exceptions inside the scope: after
/// MPI_Abort nothing is printed.
class mpi_environment {
 public:
  /// Asks for MPI_THREAD_SERIALIZED: collectives from any thread, one at a time, as steps in parts need. If MPI provides only
  /// MPI_THREAD_FUNNELED, collectives must come from the thread that constructs this. MPI must not have been started.
  /// @throws mpi_error; communicator_error if MPI provides only MPI_THREAD_SINGLE
  mpi_environment(int& argc, char**& argv) : exceptions_(std::uncaught_exceptions()) {
    int provided = MPI_THREAD_SINGLE;
    const int code = MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Init_thread", "mpi_environment");
    if (provided < MPI_THREAD_FUNNELED) {
      MPI_Finalize();
      throw communicator_error(
          "slamb: mpi_environment: this MPI provides only MPI_THREAD_SINGLE, but slamb needs at least "
          "MPI_THREAD_FUNNELED");
    }
  }
  mpi_environment(const mpi_environment&) = delete;
  mpi_environment& operator=(const mpi_environment&) = delete;
  ~mpi_environment() {
    const bool failed = detail::mpi_handle::any_has_failed() || std::uncaught_exceptions() > exceptions_;
    static_cast<void>(failed ? MPI_Abort(MPI_COMM_WORLD, 1) : MPI_Finalize());
  }

 private:
  int exceptions_;  // uncaught exceptions when this was made
};

}  // namespace slamb
