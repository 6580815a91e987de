// expect: a quantizer sends every element
#include <span>
#include <vector>

#include "slamb/slamb.hpp"

// The compression error of signs would be lost silently.
int main() {
  std::vector<float> p(10), g(10);
  const slamb::parameter tensor{p.data(), g.data(), p.size()};
  slamb::adamw<slamb::sign, slamb::local_momentum> optimizer(std::span(&tensor, 1));
  optimizer.step(0.1);
}
