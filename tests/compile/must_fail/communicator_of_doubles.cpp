// expect: the Communicator must have all_reduce_sum
#include <span>
#include <vector>

#include "slamb/slamb.hpp"

// Sums doubles only; momenta and gradients are floats.
struct double_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce_sum(std::span<double> values, slamb::host_stream stream);
};

int main() {
  std::vector<float> p(10), g(10);
  const slamb::parameter tensor{p.data(), g.data(), p.size()};
  slamb::slamb<double_communicator> optimizer(std::span(&tensor, 1));
  optimizer.step(0.1);
}
