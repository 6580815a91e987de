// The tests of one rank. All ranks run the same cases in the same order; only the first reports what passed.
#include <doctest/doctest.h>

#include <slamb/mpi.hpp>

int main(int argc, char** argv) {
  slamb::mpi_environment mpi(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  doctest::Context context(argc, argv);
  context.setOption("minimal", rank != 0);
  const int status = context.run();
  // A rank that alone has failed a check has left others in a collective, or not: they end with it.
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  return status;
}
