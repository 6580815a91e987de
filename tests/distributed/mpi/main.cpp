// The entry point of the tests over MPI. All ranks run the same cases in the same order; only rank 0 prints results.
#include <doctest/doctest.h>

#include <slamb/mpi.hpp>

int main(int argc, char** argv) {
  slamb::mpi_environment mpi(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  doctest::Context context(argc, argv);
  context.setOption("minimal", rank != 0);
  const int status = context.run();
  // If only one rank has failed a check, others may wait in a collective: end them too.
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  return status;
}
