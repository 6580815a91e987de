// The processes of an MPI program: starts MPI, and ends it with its scope.
#pragma once

#include <slamb/mpi.hpp>

#include "processes.hpp"

namespace programs {

class mpi_processes final : public processes {
 public:
  mpi_processes(int& argc, char**& argv) : environment_(argc, argv) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void end_all(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

 private:
  int largest_of_all(int status) override {
    MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return status;
  }

  slamb::mpi_environment environment_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace programs
