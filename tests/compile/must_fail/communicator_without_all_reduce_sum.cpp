// expect: the Communicator must have all_reduce_sum
#include <span>
#include <vector>

#include "slamb/slamb.hpp"

// Has rank and size, but no all_reduce_sum.
struct silent_communicator {
  int rank() const { return 0; }
  int size() const { return 1; }
};

int main() {
  std::vector<float> p(10), g(10);
  const slamb::parameter tensor{p.data(), g.data(), p.size()};
  slamb::lamb<silent_communicator> optimizer(std::span(&tensor, 1));
  optimizer.step(0.1);
}
