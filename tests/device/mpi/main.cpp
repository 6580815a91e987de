// The entry point of slamb_device_mpi_tests, on the first GPU. Only rank 0 prints results.
#include <doctest/doctest.h>

#include <slamb/mpi_cuda.hpp>

#include "../gpu.hpp"

int main(int argc, char** argv) {
  if (const int status = device_tests::status_without_gpu(); status != 0) return status;
  slamb::mpi_environment mpi(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  doctest::Context context(argc, argv);
  context.setOption("minimal", rank != 0);
  const int status = context.run();
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);  // because the others may wait for this rank
  return status;
}
