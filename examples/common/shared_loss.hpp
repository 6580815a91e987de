// The loss that the small examples minimize: every rank sees a part of it, and its minimum is known.
#pragma once

#include <slamb/slamb.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace examples {

constexpr std::size_t elements = 20'000;
constexpr std::uint64_t steps = 400;

/// c_r,i in [−1, 1): the minimum of rank r's part of the loss, for parameter i. The same on every machine.
inline float centre(int rank, std::size_t i) {
  return static_cast<float>(slamb::philox(static_cast<std::uint64_t>(rank), i, 0).word[0]) * 0x1p-31F - 1.0F;
}

/// The remaining loss above its minimum, as a fraction of the loss at w = 1.
inline double loss_left(std::span<const float> w, int ranks) {
  double before = 0.0, after = 0.0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    double minimum = 0.0;
    for (int r = 0; r < ranks; ++r) minimum += static_cast<double>(centre(r, i)) / ranks;
    before += (1.0 - minimum) * (1.0 - minimum);
    after += (static_cast<double>(w[i]) - minimum) * (static_cast<double>(w[i]) - minimum);
  }
  return after / before;
}

/// The result of one rank.
struct outcome {
  double loss_left = 0.0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t rounds = 0;  ///< collectives
};

/// Prints the result in one line.
/// @throws std::runtime_error if the loss has not fallen below a hundredth
inline void print(const char* name, const outcome& of) {
  std::printf("%-25s %.1e of the loss is left, %5.2f MB sent, %.3f bytes per element and step, %llu rounds\n", name,
              of.loss_left, static_cast<double>(of.sent_bytes) / 1e6,
              static_cast<double>(of.sent_bytes) / static_cast<double>(elements * steps),
              static_cast<unsigned long long>(of.rounds));
  if (std::fflush(stdout) != 0) throw std::runtime_error("the output could not be written");
  if (!(of.loss_left < 1e-2)) throw std::runtime_error("the loss did not fall to a hundredth");
}

/// One rank: minimizes the mean over ranks of ½ ‖w − c_r‖². It computes the gradient of its own part.
///
/// @param peak  learning rate at the start; it falls to 0
/// @throws the exceptions of the optimizer, also if the ranks end with different parameters
template <class Optimizer, class Communicator>
outcome minimize(Communicator communicator, const typename Optimizer::options_type& options, double peak) {
  const int rank = communicator.rank(), ranks = communicator.size();
  std::vector<float> w(elements, 1.0F), gradient(elements);
  const std::vector<slamb::parameter> parameters = {{.data = w.data(), .gradient = gradient.data(), .size = elements}};
  Optimizer optimizer(parameters, options, std::move(communicator), {.threads = 1});
  const slamb::learning_rate::polynomial_decay schedule{.peak = peak, .steps = steps};
  for (std::uint64_t t = 1; t <= steps; ++t) {
    for (std::size_t i = 0; i < elements; ++i) gradient[i] = w[i] - centre(rank, i);
    optimizer.step(schedule(t));
  }
  optimizer.synchronize_parameters();  // SLAMB's and 0/1 Adam's differ between ranks until they are averaged
  optimizer.compare_ranks();
  const slamb::traffic sent = optimizer.statistics().traffic.total();
  return {loss_left(w, ranks), sent.sent_bytes, sent.rounds};
}

}  // namespace examples
