// Measures the loss that is left after training, for any optimizer. Each rank has its minimum in another place and of another
// depth, and the ranks must find the common minimum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/archetype_policies.hpp"
#include "support/archetype_quantizers.hpp"
#include "support/generate.hpp"
#include "support/made_optimizer.hpp"

namespace test_support {

/// f_i(p) = ½ Σ a_ij (p_j − c_ij)². The minimum of the mean loss is not the mean of the minima. So ranks that do not exchange
/// enough, and average only at the end, miss it.
class scattered_minima {
 public:
  static constexpr float start = 2.5F;  ///< of all parameters, on one side of all minima

  explicit scattered_minima(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {
    random_source source(23);
    const std::size_t n = total_size(shapes);
    for (std::size_t i = 0; i < ranks_ * n; ++i) {
      curvature_.push_back(0.5 + source.uniform());
      centre_.push_back(1.0 + 0.5 * source.bell());
    }
    for (std::size_t j = 0; j < n; ++j) {
      double weights = 0.0, sum = 0.0;
      for (std::size_t i = j; i < curvature_.size(); i += n) {
        weights += curvature_[i];
        sum += curvature_[i] * centre_[i];
      }
      mean_curvature_.push_back(weights / static_cast<double>(ranks));
      minimum_.push_back(sum / weights);
    }
  }

  int ranks() const { return static_cast<int>(ranks_); }
  std::size_t size() const { return minimum_.size(); }

  void gradient(int rank, std::span<const float> p, std::span<float> g) const {
    const std::size_t first = static_cast<std::size_t>(rank) * size();
    for (std::size_t j = 0; j < size(); ++j)
      g[j] = static_cast<float>(curvature_[first + j] * (static_cast<double>(p[j]) - centre_[first + j]));
  }

  /// The mean loss less its minimum.
  double excess(std::span<const float> p) const {
    double sum = 0.0;
    for (std::size_t j = 0; j < size(); ++j) {
      const double away = static_cast<double>(p[j]) - minimum_[j];
      sum += 0.5 * mean_curvature_[j] * away * away;
    }
    return sum;
  }

  /// Sizes near the ends of vectors and chunks, sizes smaller than the world, and an empty tensor.
  tensor_shapes shapes{{2100, 2}, {17, 2}, {1, 2}, {0, 2}, {130, 1}, {352, 3}};

 private:
  std::size_t ranks_;
  std::vector<double> curvature_, centre_;        // [rank][n]
  std::vector<double> mean_curvature_, minimum_;  // [n]
};

/// Bounds of the remaining part of the loss: below `reached` the minimum is found, above `missed` it is missed. No test may end
/// between them.
constexpr double reached = 1e-3;
constexpr double missed = 3e-3;

/// Trains at a rate that falls from `rate` to 0. Returns the remaining part of the loss above its minimum, or infinity if ranks
/// do not end with the same bits.
inline double left_after(const optimizer_maker& make, double rate, int steps = 400) {
  static const scattered_minima problem(3);
  const slamb::learning_rate::cosine_decay schedule{.peak = rate, .steps = static_cast<std::uint64_t>(steps)};
  std::vector<std::vector<float>> end(static_cast<std::size_t>(problem.ranks()));
  slamb::run_ranks(problem.ranks(), [&](slamb::thread_communicator communicator) {
    const int rank = communicator.rank();
    std::vector<float> p(problem.size(), scattered_minima::start);
    std::vector<float> g(p.size());
    std::vector<slamb::parameter> parameters;
    std::size_t begin = 0;
    for (const tensor_shape& s : problem.shapes) {
      parameters.push_back({p.data() + begin, g.data() + begin, s.size, s.dimensions, {}});
      begin += s.size;
    }
    made_optimizer optimizer = make(parameters, slamb::any_communicator<>(std::move(communicator)), {.threads = 1});
    for (int t = 1; t <= steps; ++t) {
      problem.gradient(rank, p, g);
      optimizer.step(schedule(static_cast<std::uint64_t>(t)));
    }
    optimizer.synchronize_parameters();
    end[static_cast<std::size_t>(rank)] = p;
  });
  for (const std::vector<float>& p : end)
    if (!same_bits(p, end[0])) return std::numeric_limits<double>::infinity();
  return problem.excess(end[0]) / problem.excess(std::vector<float>(problem.size(), scattered_minima::start));
}

template <class Optimizer>
double left_after(const typename Optimizer::options_type& options, double rate, int steps = 400) {
  return left_after(maker_of<Optimizer>(options), rate, steps);
}

/// Calls visit with one scale for all tensors, and with one for each tensor.
template <class Quantizer, class Visit>
void for_both_scales(const std::string& name, Quantizer quantizer, const Visit& visit) {
  quantizer.scales = slamb::scale_sharing::fused;
  visit(name + ", fused", quantizer);
  quantizer.scales = slamb::scale_sharing::per_tensor;
  visit(name + ", per tensor", quantizer);
}
using l1_sign = slamb::basic_sign<slamb::segment_scale::l1>;

}  // namespace test_support
