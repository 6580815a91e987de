// A user's program: processes minimise |p - rank|², each with its own target, and agree on the mean.
#include <cmath>
#include <cstdio>
#include <exception>
#include <slamb/mpi.hpp>
#include <slamb/slamb.hpp>
#include <vector>

int main(int argc, char** argv) {
  slamb::mpi_environment mpi(argc, argv);
  try {
    slamb::mpi_communicator communicator;
    const int rank = communicator.rank();
    const float middle = static_cast<float>(communicator.size() - 1) / 2;
    std::vector<float> parameters(1000, 5.0F);
    std::vector<float> gradients(1000);
    const slamb::parameter tensors[]{
        {.data = parameters.data(), .gradient = gradients.data(), .size = parameters.size(), .dimensions = 1}};
    slamb::adamw<slamb::mpi_communicator> optimizer(tensors, {.weight_decay = 0.0}, std::move(communicator));
    for (int step = 0; step < 2000; ++step) {
      for (std::size_t i = 0; i < 1000; ++i) gradients[i] = parameters[i] - static_cast<float>(rank);
      optimizer.step(0.01);
    }
    std::printf("rank %d: %.2f\n", rank, parameters[999]);
    return std::fabs(parameters[999] - middle) < 0.01F ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
