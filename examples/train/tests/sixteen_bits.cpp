// A training whose parameters are bfloat16, without float copies: rounded by chance it learns as a training on floats does, rounded
// to nearest it does not, because most steps are smaller than half the distance of two bfloat16 numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../digits.hpp"
#include "../network.hpp"
#include "slamb/slamb.hpp"

#ifndef SLAMB_TRAIN_DATA
#error "define SLAMB_TRAIN_DATA as the path of the digits"
#endif

namespace {

using slamb::bfloat16;

enum class kept_as { floats, rounded_by_chance, rounded_to_nearest };

/// Trains on the digits, with one rank. Returns the accuracy on the test set.
double accuracy_of(kept_as how, std::uint64_t seed) {
  const train::split_digits data = train::split(train::read_digits(SLAMB_TRAIN_DATA));
  constexpr std::size_t batch = 32, steps = 2000;
  train::network model(std::vector<std::size_t>{64, 48, train::classes}, train::engine_for(seed, 0));
  // Floats that the model computes with, and the parameters as the optimizer keeps them.
  const std::vector<slamb::parameter> floats = model.parameters();
  std::vector<std::vector<bfloat16>> stored;
  std::vector<std::vector<float>> masters;
  std::vector<slamb::parameter> parameters = floats;
  if (how != kept_as::floats)
    for (slamb::parameter& p : parameters) {
      const std::span<const float> start(p.data.as<float>(), p.size);
      stored.emplace_back();
      for (const float x : start) stored.back().push_back(slamb::detail::to_bfloat16(x));
      p.data = stored.back().data();
      if (how == kept_as::rounded_to_nearest) {
        masters.emplace_back(start.begin(), start.end());
        p.master = masters.back().data();
      }
    }
  const auto copy_stored = [&] {
    for (std::size_t l = 0; l < stored.size(); ++l)
      for (std::size_t i = 0; i < stored[l].size(); ++i) {
        const float x = slamb::detail::to_float(stored[l][i]);
        floats[l].data.as<float>()[i] = x;
        if (!masters.empty()) masters[l][i] = x;  // forgets what was rounded away
      }
  };
  copy_stored();
  using rounding = slamb::precision::stochastic_rounding;
  slamb::adamw<slamb::self_communicator, slamb::precision::mixed<slamb::host_backend, rounding>> optimizer(
      parameters, {.weight_decay = 0.0}, {}, {{.threads = 1}, {seed}});
  std::mt19937_64 draw = train::engine_for(seed, 1);
  for (std::size_t step = 0; step < steps; ++step) {
    train::network::matrix images(batch, 64);
    std::vector<int> labels;
    for (std::size_t row = 0; row < batch; ++row) {
      const std::size_t chosen = draw() % data.training.rows();
      const std::span<const float> image = data.training.image(chosen);
      for (std::size_t i = 0; i < image.size(); ++i)
        images(static_cast<Eigen::Index>(row), static_cast<Eigen::Index>(i)) = image[i];
      labels.push_back(data.training.labels[chosen]);
    }
    model.compute_gradients(images, labels, static_cast<double>(batch));
    optimizer.step(2e-4);
    copy_stored();
  }
  train::network::matrix images(static_cast<Eigen::Index>(data.test.rows()), 64);
  for (std::size_t row = 0; row < data.test.rows(); ++row)
    for (std::size_t i = 0; i < 64; ++i)
      images(static_cast<Eigen::Index>(row), static_cast<Eigen::Index>(i)) = data.test.image(row)[i];
  return model.evaluate(images, data.test.labels).accuracy;
}

struct summary {
  double least = 1.0, most = 0.0, mean = 0.0;
};
summary of_seeds(kept_as how) {
  summary all;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const double own = accuracy_of(how, seed);
    all.least = std::min(all.least, own);
    all.most = std::max(all.most, own);
    all.mean += own / 3.0;
  }
  return all;
}

}  // namespace

TEST_CASE("sixteen bits: without float copies, rounding by chance learns as floats do, rounding to nearest does not") {
  const summary floats = of_seeds(kept_as::floats), by_chance = of_seeds(kept_as::rounded_by_chance),
                to_nearest = of_seeds(kept_as::rounded_to_nearest);
  MESSAGE("accuracy: floats ", floats.mean, " (", floats.least, " to ", floats.most, "), by chance ", by_chance.mean,
          " (", by_chance.least, " to ", by_chance.most, "), to nearest ", to_nearest.mean);
  CHECK(by_chance.mean >= floats.least);
  CHECK(by_chance.least >= floats.mean - 2.0 * (floats.most - floats.least) - 0.005);
  CHECK(to_nearest.most < floats.least - 0.02);
}
