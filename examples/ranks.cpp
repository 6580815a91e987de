// Ranks as threads: three optimizers minimize the same loss on four ranks, to compare the bytes they send.
//
//     cmake --preset examples && cmake --build --preset examples --target example_ranks
//     build/examples/bin/example_ranks
//
// LAMB averages whole gradients, SLAMB a tenth of the momentum, 1-bit LAMB signs of the momentum after 40 dense steps.
// examples::minimize in common/shared_loss.hpp trains one rank. Rank 0 prints a line for each optimizer:
//
//     lamb                      3.0e-09 of the loss is left, 48.00 MB sent, 6.000 bytes per element and step, 400 rounds
//     slamb                     7.5e-04 of the loss is left,  5.88 MB sent, 0.735 bytes per element and step, 427 rounds
//     one_bit_lamb              8.4e-05 of the loss is left,  6.46 MB sent, 0.807 bytes per element and step, 760 rounds
#include <slamb/slamb.hpp>

#include <cstdio>
#include <exception>
#include <utility>

#include "common/shared_loss.hpp"

namespace {

/// Calls minimize() on four threads, one per rank.
template <class Optimizer>
void train(const char* name, const typename Optimizer::options_type& options, double peak) {
  slamb::run_ranks(4, [&](slamb::thread_communicator communicator) {
    const int rank = communicator.rank();
    const examples::outcome result = examples::minimize<Optimizer>(std::move(communicator), options, peak);
    if (rank == 0) examples::print(name, result);
  });
}

}  // namespace

int main() {
  try {
    train<slamb::lamb<>>("lamb", {.weight_decay = 0.0}, 0.03);
    train<slamb::slamb<>>("slamb", {.weight_decay = 0.0, .local_steps = 50}, 0.06);
    train<slamb::one_bit_lamb<>>("one_bit_lamb", {.beta2 = 0.99, .weight_decay = 0.0, .warm_up = {.steps = 40}}, 0.03);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "example_ranks: %s\n", failure.what());
    return 1;
  }
}
