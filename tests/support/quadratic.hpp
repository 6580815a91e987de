// A loss whose minimum differs from rank to rank, and SLAMB and LAMB on it as plain loops in double precision. Policies are
// functions of whole tensors here: there are no sums, passes or element functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/parameter.hpp"
#include "support/generate.hpp"

namespace test_support {

/// f_i(p) = ½ Σ a_j (p_j − c_ij)², over some tensors.
class quadratic {
 public:
  quadratic(tensor_shapes tensors, int ranks, std::uint64_t seed = 7) : shapes(std::move(tensors)) {
    random_source source(seed);
    for (std::size_t j = 0; j < total_size(shapes); ++j) curvature.push_back(0.5 + source.uniform());
    for (int rank = 0; rank < ranks; ++rank) {
      centres.emplace_back();
      for (std::size_t j = 0; j < curvature.size(); ++j) centres.back().push_back(1.0 + 0.5 * source.bell());
    }
  }

  std::size_t size() const { return curvature.size(); }
  int ranks() const { return static_cast<int>(centres.size()); }

  template <class T>
  void gradient(int rank, std::span<const T> p, std::span<T> g) const {
    const std::vector<double>& centre = centres[static_cast<std::size_t>(rank)];
    for (std::size_t j = 0; j < size(); ++j)
      g[j] = static_cast<T>(curvature[j] * (static_cast<double>(p[j]) - centre[j]));
  }

  /// The mean loss over ranks.
  template <class T>
  double loss(std::span<const T> p) const {
    double sum = 0.0;
    for (const std::vector<double>& centre : centres)
      for (std::size_t j = 0; j < size(); ++j) {
        const double away = static_cast<double>(p[j]) - centre[j];
        sum += 0.5 * curvature[j] * away * away;
      }
    return sum / static_cast<double>(centres.size());
  }

  std::vector<float> start() const { return random_parameters(19, size(), 0.5); }

  tensor_shapes shapes;
  std::vector<double> curvature;
  std::vector<std::vector<double>> centres;  // [rank][n]
};

/// Tensors around the ends of vectors, tiles and chunks, one of them with one dimension.
inline tensor_shapes odd_tensors(std::size_t smallest = 1) {
  return {{17, 2}, {smallest, 2}, {33, 1}, {0, 2}, {1100, 2}, {64, 3}, {250, 2}};
}

/// Trains with an optimizer on every rank; returns the parameters, [rank][n].
template <class Make>
std::vector<std::vector<float>> train_ranks(const quadratic& problem, int steps, double rate, Make make) {
  std::vector<std::vector<float>> result(static_cast<std::size_t>(problem.ranks()));
  slamb::run_ranks(problem.ranks(), [&](slamb::thread_communicator communicator) {
    const int rank = communicator.rank();
    std::vector<float> p = problem.start();
    std::vector<float> g(p.size());
    std::vector<slamb::parameter> parameters;
    std::size_t begin = 0;
    for (const tensor_shape& s : problem.shapes) {
      parameters.push_back({p.data() + begin, g.data() + begin, s.size, s.dimensions, {}});
      begin += s.size;
    }
    auto optimizer = make(std::span<const slamb::parameter>(parameters), std::move(communicator));
    for (int step = 0; step < steps; ++step) {
      problem.gradient(rank, std::span<const float>(p), std::span<float>(g));
      optimizer.step(rate);
    }
    result[static_cast<std::size_t>(rank)] = p;
  });
  return result;
}

/// One tensor of one rank at one step: the inputs of a trust ratio.
struct tensor_at_step {
  std::span<const double> p, w, u, discount;  ///< w: without weight decay; u = w + λ p
  std::span<const char> sent;
  int world = 1;
  bool one_dimensional = false;

  /// ‖x‖ over the sent elements, or over the others.
  double norm(std::span<const double> x, bool of_sent) const {
    double sum = 0.0;
    for (std::size_t j = 0; j < x.size(); ++j)
      if ((sent[j] != 0) == of_sent) sum += x[j] * x[j];
    return std::sqrt(sum);
  }
};

/// The training loop, with functions in the place of policies.
struct plain_loop {
  std::function<bool(slamb::coordinate, std::uint64_t step)> selects;  ///< empty: dense gradients are averaged
  std::function<std::vector<double>(const tensor_at_step&)> scales;    ///< [size] the factors of γ u
  double beta1 = 0.9, beta2 = 0.999, beta3 = 0.93, epsilon = 1e-6, weight_decay = 0.01;
  bool epsilon_is_uncorrected = false;
  std::uint64_t local_steps = 100, oldest = 1U << 30U;
  std::size_t dense_below = 0;

  /// [rank][n]
  std::vector<std::vector<double>> run(const quadratic& problem, int steps, double rate) const {
    const auto ranks = static_cast<std::size_t>(problem.ranks());
    const std::size_t n = problem.size();
    std::vector<std::vector<double>> p(ranks, widened(problem.start())), m(ranks, std::vector<double>(n)), v = m, g = m;
    std::vector<std::uint64_t> age(n, 0);
    const auto average = [&](std::vector<std::vector<double>>& x, std::size_t j) {
      double sum = 0.0;
      for (const auto& of_rank : x) sum += of_rank[j];
      for (auto& of_rank : x) of_rank[j] = sum / static_cast<double>(ranks);
    };
    for (std::uint64_t t = 1; t <= static_cast<std::uint64_t>(steps); ++t) {
      for (std::size_t r = 0; r < ranks; ++r)
        problem.gradient(static_cast<int>(r), std::span<const double>(p[r]), std::span<double>(g[r]));
      if (!selects)
        for (std::size_t j = 0; j < n; ++j) average(g, j);
      for (std::size_t r = 0; r < ranks; ++r)
        for (std::size_t j = 0; j < n; ++j) {
          m[r][j] = beta1 * m[r][j] + (1.0 - beta1) * g[r][j];
          v[r][j] = beta2 * v[r][j] + (1.0 - beta2) * g[r][j] * g[r][j];
        }
      const std::vector<char> sent = select_at(problem, t);
      for (std::size_t j = 0; j < n; ++j) {
        age[j] = sent[j] != 0 ? 0 : std::min(age[j] + 1, oldest);
        if (sent[j] != 0) average(m, j);
      }
      for (std::size_t r = 0; r < ranks; ++r) apply(problem, t, rate, sent, age, p[r], m[r], v[r]);
      if ((t - 1) % local_steps == 0 && selects)
        for (std::size_t j = 0; j < n; ++j) average(p, j);
    }
    return p;
  }

 private:
  std::vector<char> select_at(const quadratic& problem, std::uint64_t t) const {
    std::vector<char> sent;
    std::uint32_t tensor = 0;
    for (const tensor_shape& s : problem.shapes) {
      const std::uint64_t offset = sent.size();
      const bool dense = !selects || s.dimensions <= 1 || s.size < dense_below;
      for (std::uint64_t i = 0; i < s.size; ++i)
        sent.push_back(dense || selects({tensor, i, s.size, offset}, t) ? 1 : 0);
      ++tensor;
    }
    return sent;
  }

  void apply(const quadratic& problem, std::uint64_t t, double rate, const std::vector<char>& sent,
             const std::vector<std::uint64_t>& age, std::vector<double>& p, const std::vector<double>& m,
             const std::vector<double>& v) const {
    const double correction1 = 1.0 - std::pow(beta1, static_cast<double>(t));
    const double correction2 = 1.0 - std::pow(beta2, static_cast<double>(t));
    std::size_t begin = 0;
    for (const tensor_shape& s : problem.shapes) {
      std::vector<double> w(s.size), u(s.size), discount(s.size);
      for (std::size_t i = 0; i < s.size; ++i) {
        const std::size_t j = begin + i;
        const double root = std::sqrt(v[j]);
        const double below = epsilon_is_uncorrected ? (root + epsilon) / std::sqrt(correction2)
                                                    : root / std::sqrt(correction2) + epsilon;
        w[i] = m[j] / correction1 / below;
        u[i] = w[i] + weight_decay * p[j];
        discount[i] = std::pow(beta3, static_cast<double>(age[j]));
      }
      const std::span<double> of_tensor = std::span(p).subspan(begin, s.size);
      const std::vector<double> scale = scales(
          {of_tensor, w, u, discount, std::span(sent).subspan(begin, s.size), problem.ranks(), s.dimensions <= 1});
      for (std::size_t i = 0; i < s.size; ++i) of_tensor[i] -= rate * scale[i] * u[i];
      begin += s.size;
    }
  }
};

/// The largest relative error of any rank's parameters.
inline double worst_error(const std::vector<std::vector<float>>& got,
                          const std::vector<std::vector<double>>& expected) {
  double worst = 0.0;
  for (std::size_t r = 0; r < got.size(); ++r) worst = std::max(worst, max_relative_error(got[r], expected.at(r)));
  return worst;
}

}  // namespace test_support
