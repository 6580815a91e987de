#include <algorithm>
#include <cmath>
#include <cstdio>
#include <slamb/slamb.hpp>
#include <vector>

struct lars_trust_ratio {  // clamp(trust · ‖p‖/‖direction‖), reduced for elements that were not exchanged for long
  double trust = 1.0, least = 0.01, most = 10.0;
  static constexpr int sums_per_segment = 2;
  template <class Real, class Sums>
  void accumulate(const slamb::update_terms<Real>& x, bool /*received*/, Sums& sums) const {
    sums.add_square(0, x.parameter), sums.add_square(1, x.direction);
  }
  float factors(const double* sums, slamb::tensor_properties tensor) const {
    if (!tensor.adapt || sums[0] == 0.0 || sums[1] == 0.0) return 1.0F;
    return static_cast<float>(std::clamp(trust * std::sqrt(sums[0] / sums[1]), least, most));
  }
  template <class Real>
  Real scale(float ratio, const Real& discount) const {
    return Real(ratio) * discount + Real(static_cast<float>(least)) * (Real(1.0F) - discount);
  }
};
int main() {
  std::vector<double> first(2), last(2);  // [rank], the loss ‖w − target‖²/2 of the rank's shard
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<float> w(200 * 100, 1.0F), g(w.size());
    const std::vector<slamb::parameter> parameters = {{.data = w.data(), .gradient = g.data(), .size = w.size()}};
    slamb::slamb<slamb::thread_communicator, slamb::random_k<>, lars_trust_ratio> optimizer(
        parameters, {.beta3 = 0.9, .trust_ratio = {.trust = 0.5}}, std::move(communicator), {.threads = 1});
    for (int t = 0; t <= 200; ++t, optimizer.step(0.01)) {
      for (std::size_t i = 0; i < w.size(); ++i) g[i] = w[i] - 0.1F * static_cast<float>(i % 10 + rank);
      double& loss = (t == 0 ? first : last)[rank] = 0.0;
      for (const float x : g) loss += 0.5 * static_cast<double>(x * x);
    }
  });
  std::printf("loss %.1f -> %.1f\n", first[0] + first[1], last[0] + last[1]);
  return last[0] + last[1] < first[0] + first[1] ? 0 : 1;
}
