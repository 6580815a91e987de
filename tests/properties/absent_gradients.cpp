// Tensors whose gradient is null: a step leaves them and their state as they are, on all ranks, for every recipe.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"
#include "support/thread_nodes.hpp"

namespace properties_absent_gradients_tests {
namespace {

using slamb::thread_communicator;
using test_support::experiment;
using test_support::made_optimizer;
using test_support::maker_of;
using test_support::optimizer_maker;
using test_support::recipe;
using test_support::replica;
using test_support::same_bits;

const test_support::model tensors{{300}, {17, 1}, {9100}, {0}, {33}};

experiment made(int world, std::size_t steps = test_support::steps_of_recipes) {
  experiment e = test_support::make_experiment(tensors, 61, world, steps);
  test_support::use_one_rate(e, 0.01);
  return e;
}

/// The pointers to the gradients, with null where `absent(tensor)`.
std::vector<const float*> pointers(replica& mine, const std::function<bool(std::size_t)>& absent) {
  std::vector<const float*> all;
  const std::vector<slamb::parameter> parameters = mine.parameters();
  for (std::size_t l = 0; l < parameters.size(); ++l)
    all.push_back(absent(l) ? nullptr : parameters[l].gradient.as<const float>());
  return all;
}

/// The values of a tensor.
std::vector<float> values_of(const replica& mine, std::size_t tensor) {
  const std::vector<float> all = mine.values();
  std::size_t first = 0;
  for (std::size_t l = 0; l < tensor; ++l) first += tensors[l].size;
  return {all.begin() + static_cast<std::ptrdiff_t>(first),
          all.begin() + static_cast<std::ptrdiff_t>(first + tensors[tensor].size)};
}

std::size_t differing_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different += a[i] == b[i] ? 0 : 1;
  return different;
}

/// True for the steps in which 0/1 Adam exchanges its local updates: support/every_recipe.hpp.
bool exchanges_updates(const recipe& r, std::size_t step) {
  return r.name.starts_with("zero_one_adam") && (step == 6 || step == 7 || step == 8 || step == 10 || step == 14);
}

/// Trains every recipe. Calls absent(step, tensor) for the tensors, and check(optimizer, replica, step, before) behind each step,
/// with a copy of the replica before the step.
using step_check = std::function<void(const recipe&, made_optimizer&, const replica&, std::size_t, const replica&,
                                      const std::vector<std::byte>&)>;
void train_all(int world, const std::function<bool(std::size_t, std::size_t)>& absent, const step_check& check) {
  for (const recipe& r : test_support::every_recipe()) {
    CAPTURE(r.name);
    const experiment e = made(world);
    slamb::run_ranks(world, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      made_optimizer optimizer =
          r.make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
      for (std::size_t t = 0; t < e.steps(); ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        optimizer.set_gradients(pointers(mine, [&](std::size_t l) { return absent(t, l); }));
        const replica before = mine;
        const std::vector<std::byte> state = optimizer.save_state();
        optimizer.step(e.rates[t]);
        check(r, optimizer, mine, t, before, state);
      }
    });
  }
}

}  // namespace

TEST_CASE("absent gradients: a tensor without a gradient keeps its parameters, and the others move") {
  for (const int world : {1, 2}) {
    std::atomic<std::size_t> moved{0}, kept{0}, wrong{0};
    const auto absent = [](std::size_t t, std::size_t l) { return t > 0 && (t + l) % 3 == 0; };
    train_all(world, absent,
              [&](const recipe& r, made_optimizer&, const replica& mine, std::size_t t, const replica& before,
                  const std::vector<std::byte>&) {
                if (t == 0 || exchanges_updates(r, t)) return;
                for (std::size_t l = 0; l < tensors.size(); ++l) {
                  if (tensors[l].size == 0) continue;
                  const bool is_same = same_bits(values_of(mine, l), values_of(before, l));
                  if (absent(t, l)) (is_same ? kept : wrong) += 1;
                  if (!absent(t, l)) (is_same ? wrong : moved) += 1;
                }
              });
    CHECK(wrong == 0);
    CHECK(kept > 100);
    CHECK(moved > 100);
  }
}

TEST_CASE("absent gradients: a step without any gradient changes nothing but its number") {
  for (const int world : {1, 2}) {
    std::atomic<std::size_t> most{0}, least{1000000}, parameters{0};
    const auto absent = [](std::size_t t, std::size_t) { return t % 3 == 1; };
    train_all(world, absent,
              [&](const recipe& r, made_optimizer& optimizer, const replica& mine, std::size_t t, const replica& before,
                  const std::vector<std::byte>& state) {
                if (exchanges_updates(r, t) || r.phases.size() > 1) {
                  if (r.phases.back().first_step == t + 2) return;  // the next phase begins behind this step
                }
                if (exchanges_updates(r, t)) return;
                const std::size_t different = differing_bytes(optimizer.save_state(), state);
                if (absent(t, 0)) {
                  if (different > most) most = different;
                  if (!same_bits(mine.values(), before.values())) ++parameters;
                } else if (different < least) {
                  least = different;
                }
              });
    CHECK(parameters == 0);
    CHECK(most < 120);  // the step in the text and as a number, the history, a schedule, the hash
    CHECK(least > 1000);
  }
}

TEST_CASE("absent gradients: AdamW reaches the parameters of an oracle") {
  const experiment e = made(3, 12);
  const auto absent = [](std::size_t t, std::size_t l) { return (t * 7 + l) % 4 == 0; };
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    slamb::adamw<thread_communicator> optimizer(mine.parameters(), {}, std::move(communicator), {.threads = 1});
    std::vector<double> p(e.start.begin(), e.start.end()), m(p.size(), 0.0), v(p.size(), 0.0);
    double worst = 0.0;
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.set_gradients(pointers(mine, [&](std::size_t l) { return absent(t, l); }));
      optimizer.step(0.01);
      std::size_t first = 0;
      const std::vector<float> reached = mine.values();
      for (std::size_t l = 0; l < tensors.size(); first += tensors[l++].size)
        for (std::size_t j = first; j < first + tensors[l].size; ++j) {
          if (!absent(t, l)) {
            double g = 0.0;
            for (const auto& of_rank : e.gradients[t]) g += static_cast<double>(of_rank[j]) / 3.0;
            const double step = static_cast<double>(t + 1);
            m[j] = 0.9 * m[j] + 0.1 * g;
            v[j] = 0.999 * v[j] + 0.001 * g * g;
            p[j] -=
                0.01 * (m[j] / (1.0 - std::pow(0.9, step)) / (std::sqrt(v[j] / (1.0 - std::pow(0.999, step))) + 1e-8) +
                        0.01 * p[j]);
          }
          worst = std::max(worst, std::abs(static_cast<double>(reached[j]) - p[j]));
        }
    }
    CHECK(worst < 2e-6);
  });
}

TEST_CASE("absent gradients: 0/1 Adam still exchanges the local updates of a tensor without a gradient") {
  const experiment e = made(2);
  const auto make = maker_of<slamb::zero_one_adam<thread_communicator>>(
      {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}});
  std::vector<std::vector<float>> after(2), between(2);
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer optimizer =
        make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
    for (std::size_t t = 0; t < 11; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.set_gradients(pointers(mine, [&](std::size_t l) { return t == 10 && l == 2; }));
      if (t == 10) between[rank] = values_of(mine, 2);  // the step before was local
      optimizer.step(0.01);
    }
    after[rank] = values_of(mine, 2);
    CHECK_NOTHROW(optimizer.compare_ranks());
  });
  CHECK_FALSE(same_bits(between[0], between[1]));
  CHECK(same_bits(after[0], after[1]));
  CHECK_FALSE(same_bits(after[0], between[0]));
}

TEST_CASE("absent gradients: a tensor that never has one changes nothing for the others, whatever it holds") {
  const auto check = [](const auto& make) {
    // The same training with and without a large tensor that is frozen.
    std::vector<std::vector<float>> reached[2];
    for (const bool has_frozen : {false, true}) {
      test_support::model tensors_of_both{{300}, {9100}};
      if (has_frozen) tensors_of_both.push_back({20000});
      const experiment small = test_support::make_experiment({{300}, {9100}}, 62, 2, 14);
      reached[has_frozen].resize(2);
      slamb::run_ranks(2, [&](thread_communicator communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        std::vector<float> start = small.start;
        start.resize(test_support::total_size(tensors_of_both), -std::numeric_limits<float>::infinity());
        replica mine(tensors_of_both, start);
        std::vector<slamb::parameter> parameters = mine.parameters();
        if (has_frozen) parameters[2].gradient = nullptr;
        made_optimizer optimizer =
            make(parameters, slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
        for (std::size_t t = 0; t < small.steps(); ++t) {
          std::vector<float> gradient = small.gradients[t][rank];
          gradient.resize(start.size(), 0.0F);
          mine.set_gradient(gradient);
          optimizer.step(0.01);
        }
        CHECK(optimizer.statistics().step == small.steps());
        std::vector<float> all = mine.values();
        for (std::size_t j = small.start.size(); j < all.size(); ++j) REQUIRE(all[j] == start[j]);
        all.resize(small.start.size());
        reached[has_frozen][rank] = all;
      });
    }
    for (std::size_t rank = 0; rank < 2; ++rank) CHECK(same_bits(reached[0][rank], reached[1][rank]));
  };
  // Scales by tensor, and no server error: its place depends on the sizes of all tensors.
  using slamb::residual;
  using one_bit_adam = slamb::one_bit_adam<residual<>, thread_communicator>;
  using zero_one = slamb::zero_one_adam<residual<>, thread_communicator>;
  constexpr auto per_tensor = slamb::scale_sharing::per_tensor;
  check(maker_of<slamb::lamb<thread_communicator>>({}));
  check(maker_of<slamb::slamb<thread_communicator>>({.local_steps = 0, .dense_below = 20}));
  check(maker_of<one_bit_adam>({.warm_up = {3}, .compressor = {per_tensor}}));
  check(maker_of<zero_one>({.variance_schedule = {.freeze_step = 6, .update_scaler = 2},
                            .local_schedule = {.scaler = 2, .clipper = 4},
                            .compressor = {per_tensor}}));
}

TEST_CASE("absent gradients: scales that tensors share do not count the elements of a tensor without a gradient") {
  // One rank: the mean over ranks is the signal, so with and without the frozen tensor all codes are equal.
  std::vector<float> reached[2];
  for (const bool has_frozen : {false, true}) {
    test_support::model both{{300}, {9100}};
    if (has_frozen) both.push_back({20000});
    const experiment small = test_support::make_experiment({{300}, {9100}}, 63, 1, 10);
    std::vector<float> start = small.start;
    start.resize(test_support::total_size(both), 1.0F);
    replica mine(both, start);
    std::vector<slamb::parameter> parameters = mine.parameters();
    if (has_frozen) parameters[2].gradient = nullptr;
    slamb::one_bit_adam<> optimizer(parameters, {.epsilon = 1e-3, .compress_single_rank = true, .warm_up = {3}});
    for (std::size_t t = 0; t < small.steps(); ++t) {
      std::vector<float> gradient = small.gradients[t][0];
      gradient.resize(start.size(), 0.0F);
      mine.set_gradient(gradient);
      optimizer.step(0.01);
    }
    reached[has_frozen] = mine.values();
    reached[has_frozen].resize(small.start.size());
  }
  double most = 0.0;  // tiles are cut elsewhere, so sums are added in another order
  for (std::size_t j = 0; j < reached[0].size(); ++j)
    most = std::max(most, std::abs(static_cast<double>(reached[0][j]) - static_cast<double>(reached[1][j])));
  CHECK(most < 1e-5);
}

TEST_CASE("absent gradients: a gradient cannot come or go in an open step") {
  const experiment e = made(1, 1);
  replica mine(e.tensors, e.start);
  slamb::adamw<> optimizer(mine.parameters());
  optimizer.begin_step(0.01);
  CHECK_THROWS_AS(optimizer.set_gradient(2, nullptr), std::logic_error);
  CHECK_THROWS_AS(optimizer.set_gradients(pointers(mine, [](std::size_t l) { return l == 0; })), std::logic_error);
  CHECK_NOTHROW(optimizer.set_gradients(pointers(mine, [](std::size_t) { return false; })));
  optimizer.finish_step();
  CHECK_NOTHROW(optimizer.set_gradient(2, nullptr));
}

TEST_CASE("absent gradients: ranks that disagree stop, and the error names the tensor") {
  const experiment e = made(2);
  const auto check = [&](const optimizer_maker& make, std::size_t missing) {
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      made_optimizer optimizer =
          make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
      mine.set_gradient(e.gradients[0][rank]);
      optimizer.step(0.01);
      const replica before = mine;
      optimizer.set_gradients(pointers(mine, [&](std::size_t l) { return rank == 1 && l == missing; }));
      const std::string expected = "slamb: ranks differ in the number of gradients of tensor " +
                                   std::to_string(missing) +
                                   ": 1 on rank 0, 0 on rank 1; a gradient must be null on all ranks or on none";
      CHECK_THROWS_WITH_AS(optimizer.step(0.01), expected.c_str(), slamb::rank_mismatch_error);
      CHECK(same_bits(mine.values(), before.values()));
      optimizer.set_gradients(pointers(mine, [](std::size_t) { return false; }));
      CHECK_NOTHROW(optimizer.step(0.01));
    });
  };
  for (const std::size_t missing : {0, 1, 2, 4}) {
    check(maker_of<slamb::lamb<thread_communicator>>({}), missing);
    check(maker_of<slamb::slamb<thread_communicator>>({.local_steps = 0}), missing);
    check(maker_of<slamb::one_bit_adam<thread_communicator>>({}), missing);
  }
}

TEST_CASE("absent gradients: in nodes, and from construction on") {
  const experiment e = made(1, 2);
  test_support::thread_nodes nodes({2, 2});
  nodes.run([&](test_support::nodes_of_threads communicator, std::size_t) {
    replica mine(e.tensors, e.start);
    std::vector<slamb::parameter> parameters = mine.parameters();
    parameters[2].gradient = nullptr;
    slamb::lamb<test_support::nodes_of_threads> optimizer(parameters, {}, std::move(communicator), {.threads = 1});
    mine.set_gradient(e.gradients[0][0]);
    const replica before = mine;
    optimizer.step(0.01);
    CHECK(same_bits(values_of(mine, 2), values_of(before, 2)));
    CHECK_FALSE(same_bits(values_of(mine, 0), values_of(before, 0)));
    optimizer.set_gradient(2, mine.parameters()[2].gradient);
    optimizer.step(0.01);
    CHECK_FALSE(same_bits(values_of(mine, 2), values_of(before, 2)));
  });
}

}  // namespace properties_absent_gradients_tests
