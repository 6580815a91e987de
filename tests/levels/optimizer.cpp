// One optimizer with stochastic codes, which compiles the host backend's vector code.
#include <slamb/slamb.hpp>
#include <vector>

int main() {
  using compressor = slamb::chain<slamb::random_k<>, slamb::int8>;
  std::vector<float> values(100), gradient(100);
  const slamb::parameter tensors[]{{.data = values.data(), .gradient = gradient.data(), .size = values.size()}};
  slamb::lamb<compressor, slamb::residual<>> run(tensors);
  run.step(0.1);
}
