// A training whose parameters and gradients are bfloat16, without float copies: rounded by chance it learns as a training on floats
// does, also with moments in eight bits. Rounded to nearest it does not, because most steps are smaller than half the distance of two
// bfloat16 numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "../digits.hpp"
#include "../network.hpp"
#include "../settings.hpp"
#include "../stored_tensors.hpp"
#include "slamb/slamb.hpp"

#ifndef SLAMB_TRAIN_DATA
#error "define SLAMB_TRAIN_DATA as the path of the digits"
#endif

namespace {

enum class kept_as { floats, rounded_by_chance, rounded_to_nearest };

/// Trains on the digits, with one rank. Returns the accuracy on the test set.
template <class Moments = slamb::precision::float_moments>
double accuracy_of(kept_as how, std::uint64_t seed) {
  const train::split_digits data = train::split(train::read_digits(SLAMB_TRAIN_DATA));
  constexpr std::size_t batch = 32, steps = 2000;
  train::network model(std::vector<std::size_t>{64, 48, train::classes}, train::engine_for(seed, 0));
  train::settings chosen;
  if (how != kept_as::floats) chosen.precision = "bf16";
  chosen.rounding = how == kept_as::rounded_by_chance ? "stochastic" : "masters";
  const std::unique_ptr<train::stored_tensors> stored = train::store(model.parameters(), chosen);
  const auto load = [&] {
    stored->load_parameters();
    if (how != kept_as::rounded_to_nearest) return;
    const std::vector<slamb::parameter> floats = model.parameters();
    for (std::size_t l = 0; l < floats.size(); ++l)  // forgets what was rounded away
      std::copy_n(floats[l].data.as<const float>(), floats[l].size, stored->parameters()[l].master);
  };
  load();
  using rounding = slamb::precision::stochastic_rounding;
  slamb::adamw<slamb::self_communicator, slamb::precision::mixed<slamb::host_backend, rounding, Moments>> optimizer(
      stored->parameters(), {.weight_decay = 0.0}, {}, {{.threads = 1}, {seed}});
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
    stored->store_gradients();
    optimizer.step(2e-4);
    load();
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
template <class Moments = slamb::precision::float_moments>
summary of_seeds(kept_as how) {
  summary all;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const double own = accuracy_of<Moments>(how, seed);
    all.least = std::min(all.least, own);
    all.most = std::max(all.most, own);
    all.mean += own / 3.0;
  }
  return all;
}

}  // namespace

TEST_CASE("sixteen bits: without float copies, rounding by chance learns as floats do, rounding to nearest does not") {
  const summary floats = of_seeds(kept_as::floats), by_chance = of_seeds(kept_as::rounded_by_chance),
                to_nearest = of_seeds(kept_as::rounded_to_nearest),
                eight_bits = of_seeds<slamb::precision::eight_bit_moments>(kept_as::rounded_by_chance);
  MESSAGE("accuracy: floats ", floats.mean, " (", floats.least, " to ", floats.most, "), by chance ", by_chance.mean,
          " (", by_chance.least, " to ", by_chance.most, "), with moments in eight bits ", eight_bits.mean, " (",
          eight_bits.least, " to ", eight_bits.most, "), to nearest ", to_nearest.mean);
  CHECK(by_chance.mean >= floats.least);
  CHECK(by_chance.least >= floats.mean - 2.0 * (floats.most - floats.least) - 0.005);
  CHECK(eight_bits.mean >= floats.least);
  CHECK(eight_bits.least >= floats.mean - 2.0 * (floats.most - floats.least) - 0.005);
  CHECK(to_nearest.most < floats.least - 0.02);
}
