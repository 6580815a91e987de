// examples/custom_optimizer.cpp compiled by nvcc: its kernels for the device, and a run of the same kernels on the CPU, which
// needs no GPU.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include "../../../examples/custom_optimizer.cpp"
#include "slamb/backend/cuda/cuda_backend.cuh"
#include "slamb/backend/cuda/emulated_backend.hpp"

template class slamb::detail::optimizer_over<lion_recipe<slamb::cuda_backend>, slamb::self_communicator>;

int main() {
  std::vector<float> w(8200, 1.0F), g(w.size());
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = i % 3 == 0 ? -0.5F : 0.25F;
  const std::vector<slamb::parameter> tensors{{.data = w.data(), .gradient = g.data(), .size = w.size()}};
  lion<slamb::self_communicator, slamb::emulated_backend> optimizer(tensors, {.weight_decay = 0.5});
  optimizer.step(0.125);
  const std::vector<std::byte> state = optimizer.save_state();
  optimizer.load_state(state);
  optimizer.step(0.125);
  // p ← p − 1/8 (Δ + p/2), twice, where Δ is the sign of the gradient
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double sign = i % 3 == 0 ? -1.0 : 1.0, first = 1.0 - 0.125 * (sign + 0.5),
                 second = first - 0.125 * (sign + 0.5 * first);
    wrong += std::abs(static_cast<double>(w[i]) - second) > 1e-6 ? 1 : 0;
  }
  std::printf("%zu of %zu parameters are wrong after %llu steps\n", wrong, w.size(),
              static_cast<unsigned long long>(optimizer.statistics().step));
  return wrong == 0 && optimizer.statistics().step == 2 ? 0 : 1;
}
