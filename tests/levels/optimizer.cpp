// One optimizer with stochastic codes, which compiles the host backend's vector code.
#include <slamb/slamb.hpp>
#include <vector>

int main() {
  using compressor = slamb::chain<slamb::random_k<>, slamb::int8>;
  std::vector<float> values(100), gradient(100);
  const slamb::parameter tensors[]{{.data = values.data(), .gradient = gradient.data(), .size = values.size()}};
  slamb::basic_lamb<compressor, slamb::residual<>, slamb::layerwise_trust_ratio, slamb::self_communicator,
                    slamb::host_backend>
      run(tensors);
  run.step(0.1);
}
