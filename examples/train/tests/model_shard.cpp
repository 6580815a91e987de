// Tests of the parts into which slamb_train cuts a network.
#include "../model_shard.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "../random.hpp"

namespace {

constexpr std::array<std::size_t, 3> widths{5, 4, 3};  // tensors of 20, 4, 12 and 3 elements: 39

// The other shards hold given values.
class lone_shard final : public train::rank_optimizer {
 public:
  std::vector<float> gathered{}, added{};

  void step(double /*learning_rate*/) override {}
  void with_averaged_parameters(const std::function<void()>& evaluate) override { evaluate(); }
  void set_loss_scale(const float* /*scale*/) override {}
  slamb::statistics statistics() const override { return {}; }
  void sum_over_shards(std::span<float> values) override {
    REQUIRE(values.size() == added.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += added[i];
  }
  void gather_shards(std::span<const float> /*mine*/, std::span<float> all) override {
    REQUIRE(all.size() == gathered.size());
    std::ranges::copy(gathered, all.begin());
  }
};

train::network made_network() { return {widths, train::engine_for(1, 0)}; }

std::vector<float> values_of(train::network& model) {
  std::vector<float> all;
  for (const auto& tensor : model.tensors()) all.insert(all.end(), tensor.data, tensor.data + tensor.size);
  return all;
}

}  // namespace

TEST_CASE("model_shard: parts have each parameter once, in order, uneven and some of them empty") {
  for (const int shards : {2, 3, 5, 38, 39, 50}) {
    CAPTURE(shards);
    train::network model = made_network();
    const std::vector<float> whole = values_of(model);
    std::vector<float> joined;
    std::vector<std::vector<std::size_t>> sizes(4);
    for (int shard = 0; shard < shards; ++shard) {
      train::model_shard part(model, shard, shards);
      const std::vector<slamb::parameter> tensors = part.parameters();
      REQUIRE(tensors.size() == 4);
      for (std::size_t i = 0; i < 4; ++i) {
        const slamb::parameter& of = tensors[i];
        const auto* first = of.data.as<const float>();
        CHECK(of.whole_size == model.parameters()[i].size);
        CHECK(of.dimensions == model.parameters()[i].dimensions);
        CHECK(of.gradient.as<const float>() != nullptr);
        joined.insert(joined.end(), first, first + of.size);
        sizes[i].push_back(of.size);
      }
    }
    CHECK(joined == whole);
    for (const std::vector<std::size_t>& of_tensor : sizes) CHECK(std::ranges::count(of_tensor, 0U) > 0);
    CHECK(std::ranges::any_of(sizes, [](const std::vector<std::size_t>& of) { return of.front() != of.back(); }));
  }
}

TEST_CASE("model_shard: the network gets the parameters of all shards, and the part the mean of the gradients") {
  train::network model = made_network();
  constexpr int shards = 4;  // of 10, 10, 10 and 9 parameters, so that one number is for padding
  train::model_shard part(model, 1, shards);
  lone_shard optimizer;
  optimizer.gathered.resize(40);
  std::iota(optimizer.gathered.begin(), optimizer.gathered.end(), 1.0F);
  part.gather_parameters(optimizer);
  std::vector<float> expected = optimizer.gathered;
  expected.pop_back();
  CHECK(values_of(model) == expected);

  train::network::matrix images = train::network::matrix::Constant(2, 5, 0.5F);
  const std::array<int, 2> labels{0, 2};
  model.compute_gradients(images, labels, 2.0);
  std::vector<float> gradient;
  for (const auto& tensor : model.tensors())
    gradient.insert(gradient.end(), tensor.gradient, tensor.gradient + tensor.size);
  optimizer.added.resize(40);
  std::iota(optimizer.added.begin(), optimizer.added.end(), 5.0F);
  part.average_gradients(optimizer);
  std::size_t at = 10;
  for (const slamb::parameter& tensor : part.parameters())
    for (std::size_t i = 0; i < tensor.size; ++i, ++at)
      CHECK(tensor.gradient.as<const float>()[i] == (gradient[at] + optimizer.added[at]) / 4.0F);
  CHECK(at == 20);
}

TEST_CASE("model_shard: a step gathers the parameters and sums the gradients, with padding") {
  const slamb::traffic traffic = train::model_shard::traffic_of_step(39, 4);
  CHECK(traffic.rounds == 2);
  CHECK(traffic.sent_bytes == 4 * (40 * 3 / 4 + 2 * 40 * 3 / 4));
}
