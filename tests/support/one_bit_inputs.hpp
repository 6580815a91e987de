// Gradients for 1-bit optimizers whose signs single precision can reproduce. Where a sign depends on the last digits, two
// correct computations may disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "generate.hpp"

namespace test_support {

/// [world][n] gradients of one step, for tensors of these sizes. Each rank's gradient is close to a common one. The common one
/// differs by tensor and element, changes its sign now and then, and is never near 0, so v is not near 0 either.
inline std::vector<std::vector<float>> structured_gradients(std::uint64_t seed, std::uint64_t step, int world,
                                                            const std::vector<std::size_t>& sizes) {
  std::vector<std::vector<float>> gradients(static_cast<std::size_t>(world));
  std::vector<double> common;
  random_source shape(seed, 0x51);
  random_source now(seed, 0x52, step);
  for (const std::size_t size : sizes) {
    const double of_tensor = 0.3 + 1.7 * shape.uniform();
    for (std::size_t i = 0; i < size; ++i) {
      const double magnitude = of_tensor * (0.8 + 0.8 * shape.uniform());
      common.push_back(now.below(3) == 0 ? -magnitude : magnitude);
    }
  }
  for (int rank = 0; rank < world; ++rank) {
    random_source own(seed, 0x53, step, static_cast<std::uint64_t>(rank));
    for (const double x : common)
      gradients[static_cast<std::size_t>(rank)].push_back(static_cast<float>(x * (0.3 + 1.4 * own.uniform())));
  }
  return gradients;
}

/// Takes steps with an oracle. Before each, it changes the gradients that caused a close call.
template <class Oracle>
class settling {
 public:
  explicit settling(Oracle run) : run_(std::move(run)), before_(run_) {}

  /// @param gradients  [rank][n]
  /// @throws std::runtime_error if close calls remain after many changes
  void step(const std::vector<double>& rates, std::vector<std::vector<float>>& gradients) {
    random_source changes(0x5E, gradients.size());
    before_ = run_;
    for (int attempt = 0; attempt < 60; ++attempt) {
      run_.step(rates, widened(gradients));
      const std::vector<std::size_t> close = run_.close_calls();
      if (close.empty()) return;
      for (const std::size_t j : close)
        for (auto& of_rank : gradients) of_rank[j] *= static_cast<float>(1.02 + 0.2 * changes.uniform());
      run_ = before_;
    }
    throw std::runtime_error("settling: signs stay near zero");
  }

  Oracle& run() { return run_; }

 private:
  Oracle run_, before_;
};

}  // namespace test_support
