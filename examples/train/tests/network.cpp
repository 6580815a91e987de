// Tests of the model of slamb_train: gradients against differences, the loss against a calculation by hand, the tensors for an
// optimizer.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "../network.hpp"

namespace {

using network = train::basic_network<double>;

constexpr std::array<std::size_t, 4> widths{5, 7, 6, 3};
constexpr std::array<int, 4> labels{0, 2, 1, 2};

network::matrix some_images() {
  std::mt19937_64 engine = train::engine_for(11, 0);
  network::matrix images(4, 5);
  for (double& x : images.reshaped()) x = train::uniform_within(engine, 1.0);
  return images;
}

}  // namespace

TEST_CASE("network: gradients match central differences of the loss") {
  network model(widths, train::engine_for(5, 0));
  const network::matrix images = some_images();
  const auto parameters = model.tensors();
  model.compute_gradients(images, labels, 4.0);
  std::size_t not_zero = 0;
  for (const auto& p : parameters) {
    const std::vector<double> gradient(p.gradient, p.gradient + p.size);
    for (std::size_t i = 0; i < p.size; ++i) {
      constexpr double h = 1e-6;
      const double at = p.data[i];
      p.data[i] = at + h;
      const double above = model.evaluate(images, labels).loss;
      p.data[i] = at - h;
      const double below = model.evaluate(images, labels).loss;
      p.data[i] = at;
      CHECK(gradient[i] == doctest::Approx((above - below) / (2 * h)).epsilon(1e-6).scale(0.01));
      if (gradient[i] != 0.0) ++not_zero;
    }
  }
  CHECK(not_zero > model.size() / 2);
}

TEST_CASE("network: the divisor scales loss and gradients, so shares of a batch add up") {
  network model(widths, train::engine_for(5, 0));
  const network::matrix images = some_images();
  const auto weights = model.tensors().front();
  const double whole = model.compute_gradients(images, labels, 4.0);
  const double gradient = weights.gradient[3];
  CHECK(whole == doctest::Approx(model.evaluate(images, labels).loss));
  double parts = 0.0;
  double parts_gradient = 0.0;
  for (const auto& [first, count] : {std::pair{0, 1}, std::pair{1, 3}}) {
    const std::span<const int> own(labels.data() + first, static_cast<std::size_t>(count));
    parts += model.compute_gradients(images.middleRows(first, count), own, 4.0);
    parts_gradient += weights.gradient[3];
  }
  CHECK(parts == doctest::Approx(whole));
  CHECK(parts_gradient == doctest::Approx(gradient));
}

TEST_CASE("network: loss and accuracy match values computed by hand, also for large logits") {
  network model(std::array<std::size_t, 2>{1, 2}, train::engine_for(1, 0));
  const auto parameters = model.tensors();
  parameters[0].data[0] = 1.0;  // logits x, −x
  parameters[0].data[1] = -1.0;
  parameters[1].data[0] = parameters[1].data[1] = 0.0;
  network::matrix images(2, 1);
  images << 1.0, -2.0;
  const std::array<int, 2> both_zero{0, 0};
  const train::evaluation found = model.evaluate(images, both_zero);
  CHECK(found.loss == doctest::Approx((std::log1p(std::exp(-2.0)) + std::log1p(std::exp(4.0))) / 2));
  CHECK(found.accuracy == 0.5);
  images << 1000.0, -1000.0;
  CHECK(model.evaluate(images, both_zero).loss == doctest::Approx(1000.0));
}

TEST_CASE("network: shows weights as matrices and biases as vectors") {
  network model(widths, train::engine_for(5, 0));
  const auto parameters = model.tensors();
  REQUIRE(parameters.size() == 6);
  std::size_t total = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CHECK(parameters[i].dimensions == (i % 2 == 0 ? 2 : 1));
    total += parameters[i].size;
  }
  CHECK(parameters[0].size == 35);
  CHECK(parameters[5].size == 3);
  CHECK(total == model.size());
}

TEST_CASE("network: equal seeds give equal initial weights, other seeds others") {
  network one(widths, train::engine_for(5, 0));
  network same(widths, train::engine_for(5, 0));
  network other(widths, train::engine_for(6, 0));
  CHECK(one.tensors()[2].data[4] == same.tensors()[2].data[4]);
  CHECK(one.tensors()[2].data[4] != other.tensors()[2].data[4]);
}
