// The processes that mpirun started, as worlds for the communicators' suite.
#pragma once

#include <mpi.h>

#include <slamb/mpi.hpp>
#include <span>
#include <utility>

#include "support/communicator_suite.hpp"

namespace mpi_tests {

/// An MPI communicator of all processes, or of the first ones.
class processes {
 public:
  explicit processes(int ranks) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank < ranks ? 0 : MPI_UNDEFINED, rank, &comm_);
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  ~processes() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

  static int all() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }

  /// Null in a process outside it.
  MPI_Comm get() const { return comm_; }
  bool has_this() const { return comm_ != MPI_COMM_NULL; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// All processes, with communicators of these settings.
struct mpi_world {
  using communicator_type = slamb::mpi_communicator;
  slamb::mpi_options options{};

  template <class F>
  void run(int /*ranks*/, F body) const {
    body(slamb::mpi_communicator(MPI_COMM_WORLD, options));
  }

  template <class T>
  void share(test_support::communicator_suite::outcome<T>& result) const {
    for (std::size_t rank = 0; rank < result.size(); ++rank) {
      unsigned long long size = result[rank].values().size();
      MPI_Bcast(&size, 1, MPI_UNSIGNED_LONG_LONG, static_cast<int>(rank), MPI_COMM_WORLD);
      if (result[rank].values().size() != size) result[rank] = test_support::communicator_suite::buffer<T>(size);
      const auto all = std::as_writable_bytes(result[rank].with_margins());
      MPI_Bcast(all.data(), static_cast<int>(all.size()), MPI_BYTE, static_cast<int>(rank), MPI_COMM_WORLD);
    }
  }
};

}  // namespace mpi_tests
