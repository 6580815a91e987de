// Gradients that become exactly zero: moments decay to denormals and remain, and the ratio of norms exceeds the range of floats.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "slamb/slamb.hpp"

namespace properties_fading_gradients_tests {
namespace {

// 3000 steps with a gradient only in the first; no weight decay.
template <class Optimizer>
std::vector<float> parameters_after(const typename Optimizer::options_type& options, double learning_rate,
                                    int dimensions) {
  std::vector<float> weight(100), gradient(100);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = 1.0F + 0.01F * static_cast<float>(i);
    gradient[i] = i % 3 == 0 ? 0.0F : 0.1F;
  }
  const std::vector<slamb::parameter> parameters{
      {.data = weight.data(), .gradient = gradient.data(), .size = weight.size(), .dimensions = dimensions}};
  Optimizer optimizer(parameters, options);
  for (int t = 0; t < 3000; ++t) {
    optimizer.step(learning_rate);
    std::fill(gradient.begin(), gradient.end(), 0.0F);
  }
  return weight;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

TEST_CASE("fading gradients: parameters stay finite") {
  for (const double learning_rate : {0.0, 1e-3, 0.1}) {
    CAPTURE(learning_rate);
    for (const int dimensions : {1, 2}) {
      CAPTURE(dimensions);
      CHECK(all_finite(parameters_after<slamb::lamb<>>({.weight_decay = 0.0}, learning_rate, dimensions)));
      CHECK(all_finite(parameters_after<slamb::adamw<>>({.weight_decay = 0.0}, learning_rate, dimensions)));
      CHECK(all_finite(
          parameters_after<slamb::slamb<>>({.weight_decay = 0.0, .dense_below = 0}, learning_rate, dimensions)));
      using blend = slamb::slamb<slamb::self_communicator, slamb::random_k<>,
                                 slamb::rescaled_trust_ratio<slamb::rescaling::blend>>;
      CHECK(all_finite(parameters_after<blend>({.weight_decay = 0.0, .dense_below = 0}, learning_rate, dimensions)));
    }
  }
}

TEST_CASE("fading gradients: the check can fail") { CHECK_FALSE(all_finite({1.0F, std::nanf("")})); }

TEST_CASE("adamw: a constant gradient gives steps of the size of the learning rate, also with β2 close to 1") {
  // An error in β of half a unit in the last place of 1 shows only after hundreds of thousands of steps.
  float weight = 0.0F;
  const float gradient = 1.0F;
  const std::vector<slamb::parameter> parameters{{.data = &weight, .gradient = &gradient, .size = 1}};
  slamb::adamw<> optimizer(parameters, {.beta2 = 0.999999, .weight_decay = 0.0});
  double worst = 0.0;
  for (int t = 0; t < 300'000; ++t) {
    weight = 0.0F;  // so that the step has full precision
    optimizer.step(1.0);
    worst = std::max(worst, std::abs(static_cast<double>(weight) + 1.0));
  }
  CAPTURE(worst);
  CHECK(worst < 1e-3);
}

}  // namespace properties_fading_gradients_tests
