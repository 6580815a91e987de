// Ranks as MPI processes: the training of ranks.cpp under mpirun. It ends with the same bits.
//
//     cmake --preset release && cmake --build --preset release --target example_mpi
//     mpirun -n 4 build/release/bin/example_mpi
//
// The first process prints what example_ranks prints.
#include <slamb/mpi.hpp>
#include <slamb/slamb.hpp>

#include <cstdio>
#include <exception>
#include <utility>

#include "common/shared_loss.hpp"

namespace {

/// Calls minimize() on this process, which is one rank.
template <class Optimizer>
void train(const char* name, const typename Optimizer::options_type& options, double peak) {
  slamb::mpi_communicator communicator;
  const int rank = communicator.rank();
  const examples::outcome result = examples::minimize<Optimizer>(std::move(communicator), options, peak);
  if (rank == 0) examples::print(name, result);
}

}  // namespace

int main(int argc, char** argv) {
  slamb::mpi_environment mpi(argc, argv);  // MPI_Init and MPI_Finalize, or MPI_Abort if a communicator has failed
  try {
    train<slamb::lamb<>>("lamb", {.weight_decay = 0.0}, 0.03);
    train<slamb::slamb<>>("slamb", {.weight_decay = 0.0, .local_steps = 50}, 0.06);
    train<slamb::one_bit_lamb<>>("one_bit_lamb", {.beta2 = 0.99, .weight_decay = 0.0, .warm_up = {.steps = 40}}, 0.03);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "example_mpi: %s\n", failure.what());
    return 1;
  }
}
