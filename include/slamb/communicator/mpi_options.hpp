// Settings of an mpi_communicator, and its requirements on MPI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "slamb/communicator/mpi_error.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Settings of an mpi_communicator.
struct mpi_options {
  std::chrono::milliseconds timeout{300000};    ///< of one wait, in which a piece of the data must arrive; > 0
  std::chrono::microseconds poll_interval{20};  ///< sleep between polls, after the first 200 µs; ≥ 0
  std::size_t piece_bytes = std::size_t{1}
                            << 22;  ///< of a payload in flight at once; in [64, 2^30]; the same on all ranks
  /// Largest size of a message; in [64, 2^30]; the same on all ranks. If a message is longer than MPI sends at once (Open MPI
  /// over TCP: 64 KiB), MPI waits for an answer of the receiver. On a slow link the answer comes after all other data in its
  /// direction.
  std::size_t message_bytes = std::size_t{60} << 10;
};

namespace detail {

inline mpi_options validated(mpi_options o) {
  o.timeout = std::min<std::chrono::milliseconds>(o.timeout, std::chrono::hours(24 * 365));
  require_in(o.timeout.count() > 0, "mpi_options::timeout", static_cast<double>(o.timeout.count()), "> 0 ms");
  require_in(o.poll_interval.count() >= 0, "mpi_options::poll_interval", static_cast<double>(o.poll_interval.count()),
             "≥ 0 µs");
  require_in(o.piece_bytes >= 64 && o.piece_bytes <= (std::size_t{1} << 30), "mpi_options::piece_bytes",
             static_cast<double>(o.piece_bytes), "in [64, 2^30]");
  require_in(o.message_bytes >= 64 && o.message_bytes <= (std::size_t{1} << 30), "mpi_options::message_bytes",
             static_cast<double>(o.message_bytes), "in [64, 2^30]");
  return o;
}

inline void require_mpi() {
  int initialized = 0;
  int finalized = 0;
  static_cast<void>(MPI_Initialized(&initialized));
  static_cast<void>(MPI_Finalized(&finalized));
  if (initialized == 0 || finalized != 0) {
    throw std::logic_error(
        std::string("slamb: mpi_communicator: MPI ") + (finalized != 0 ? "has ended" : "has not been started") +
        "; construct it between MPI_Init_thread and MPI_Finalize, or while an mpi_environment exists");
  }
}

/// True if MPI accepts calls from this thread.
inline bool is_callable_here() noexcept {
  int provided = MPI_THREAD_SINGLE;
  int is_main = 0;
  static_cast<void>(MPI_Query_thread(&provided));
  if (provided < MPI_THREAD_SERIALIZED) static_cast<void>(MPI_Is_thread_main(&is_main));
  return provided >= MPI_THREAD_SERIALIZED || is_main != 0;
}

inline void require_intracommunicator(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) throw std::invalid_argument("slamb: mpi_communicator: the communicator is MPI_COMM_NULL");
  int is_inter = 0;
  const int code = MPI_Comm_test_inter(comm, &is_inter);
  if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Comm_test_inter", "mpi_communicator");
  if (is_inter != 0) {
    throw std::invalid_argument(
        "slamb: mpi_communicator: the communicator joins two groups (MPI_Intercomm_create), but it must have one");
  }
}

inline void require_errors_returned(MPI_Comm comm) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  const int code = MPI_Comm_get_errhandler(comm, &handler);
  if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Comm_get_errhandler", "mpi_communicator");
  const bool is_fatal = handler == MPI_ERRORS_ARE_FATAL;
  if (handler != MPI_ERRHANDLER_NULL) static_cast<void>(MPI_Errhandler_free(&handler));
  if (is_fatal) {
    throw std::invalid_argument(
        "slamb: mpi_communicator::borrow: errors of the communicator end the program (MPI_ERRORS_ARE_FATAL), but they "
        "must be returned: call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)");
  }
}

}  // namespace detail
}  // namespace slamb
