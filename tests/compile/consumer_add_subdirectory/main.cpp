// AdamW over two tensors, through add_subdirectory.
#include <slamb/slamb.hpp>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> weights(12, 1.0F), weights_gradient(12, 0.5F);
  std::vector<float> bias(3, 0.0F), bias_gradient(3, -0.5F);
  const std::vector<slamb::parameter> parameters = {
      {.data = weights.data(), .gradient = weights_gradient.data(), .size = weights.size()},
      {.data = bias.data(), .gradient = bias_gradient.data(), .size = bias.size(), .dimensions = 1},
  };

  slamb::adamw<> optimizer(parameters, {.beta1 = 0.8, .weight_decay = 0.0});
  for (int step = 0; step < 10; ++step) optimizer.step(0.01);

  // Each element moves against its gradient.
  const bool moved = weights.front() < 1.0F && bias.front() > 0.0F && optimizer.statistics().step == 10;
  std::printf("weights %.4f, bias %.4f\n", static_cast<double>(weights.front()), static_cast<double>(bias.front()));
  return moved ? 0 : 1;
}
