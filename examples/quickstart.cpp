// A single rank: an optimizer over buffers of your own. The first program of README.md.
//
//     cmake --preset examples && cmake --build --preset examples --target example_quickstart
//     build/examples/bin/example_quickstart
//
// LAMB minimizes (‖weight‖² + ‖bias‖²)/2 from 0.1 and 1. It prints the final first elements:
//
//     weight 0.0076, bias -0.0221
#include <slamb/slamb.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  std::vector<float> weight(64 * 64, 0.1F), weight_gradient(64 * 64);
  std::vector<float> bias(64, 1.0F), bias_gradient(64);
  const std::vector<slamb::parameter> parameters = {
      {.data = weight.data(), .gradient = weight_gradient.data(), .size = weight.size()},
      {.data = bias.data(),
       .gradient = bias_gradient.data(),
       .size = bias.size(),
       .dimensions = 1,
       .options = {.weight_decay = 0.0, .adapt = false}}};

  slamb::lamb<> optimizer(parameters, {.weight_decay = 0.01});
  const slamb::learning_rate::linear_warmup schedule{10, slamb::learning_rate::cosine_decay{.peak = 0.05, .steps = 90}};
  for (std::uint64_t t = 1; t <= 100; ++t) {
    // Yours come from the model.
    for (std::size_t i = 0; i < weight.size(); ++i) weight_gradient[i] = weight[i];
    for (std::size_t i = 0; i < bias.size(); ++i) bias_gradient[i] = bias[i];
    optimizer.step(schedule(t));
  }
  std::printf("weight %.4f, bias %.4f\n", static_cast<double>(weight[0]), static_cast<double>(bias[0]));
}
