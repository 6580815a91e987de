// A type for all optimizers: any recipe moves into a slamb::optimizer, and a moved-from one throws.
#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/replica.hpp"

namespace optimizer_optimizer_tests {
namespace {

using slamb::optimizer;
using test_support::replica;

const test_support::model tensors{{300}, {17, 1}, {9100}};
constexpr int steps = 6;

std::vector<float> start() {
  test_support::random_source source(61);
  std::vector<float> values(test_support::total_size(tensors));
  for (float& x : values) x = static_cast<float>(source.bell());
  return values;
}

/// The parameters after some steps in which the gradients are the parameters.
std::vector<float> train(const std::function<optimizer(std::span<const slamb::parameter>)>& make) {
  replica mine(tensors, start());
  optimizer run = make(mine.parameters());
  for (int t = 0; t < steps; ++t) {
    mine.set_gradient(mine.values());
    run.step(0.01);
  }
  CHECK(run.statistics().step == steps);
  return mine.values();
}

/// As above, by the recipe itself.
template <class Recipe>
std::vector<float> train_typed(const typename Recipe::options_type& options) {
  replica mine(tensors, start());
  Recipe run(mine.parameters(), options);
  for (int t = 0; t < steps; ++t) {
    mine.set_gradient(mine.values());
    run.step(0.01);
  }
  return mine.values();
}

/// The parameters after one step of LAMB with gradients of 0.
std::vector<float> train_typed_once(const slamb::lamb<>::options_type& options) {
  replica mine(tensors, start());
  slamb::lamb<>(mine.parameters(), options).step(0.1);
  return mine.values();
}

template <class Recipe>
void check_any(const typename Recipe::options_type& options = {}) {
  const std::vector<float> typed = train_typed<Recipe>(options);
  CHECK(typed != start());
  CHECK(test_support::same_bits(typed, train([&](auto parameters) { return Recipe(parameters, options); })));
}

}  // namespace

TEST_CASE("optimizer: holds every recipe by move, with the same bits") {
  check_any<slamb::adamw<>>();
  check_any<slamb::lamb<>>();
  check_any<slamb::slamb<>>();
  check_any<slamb::one_bit_adam<>>({.warm_up = {3}});
  check_any<slamb::one_bit_lamb<>>({.warm_up = {3}});
  check_any<slamb::zero_one_adam<>>();
}

TEST_CASE("optimizer: one that was moved from names the rejected call, and can be assigned to") {
  replica mine(tensors, start());
  slamb::lamb<> first(mine.parameters());
  slamb::lamb<> second(std::move(first));
  const auto rejects = [](const std::string& call, auto&& f) {
    CHECK_THROWS_WITH_AS(f(), doctest::Contains((call + " was called on an optimizer that was moved from").c_str()),
                         std::logic_error);
  };
  const double rates[] = {0.1};
  rejects("step()", [&] { first.step(0.1); });
  rejects("step()", [&] { first.step(std::span<const double>(rates)); });
  rejects("step()", [&] { first.step(slamb::device_learning_rates{rates}); });
  rejects("begin_step()", [&] { first.begin_step(0.1); });
  rejects("begin_step()", [&] { first.begin_step(slamb::device_learning_rates{rates}); });
  rejects("gradient_ready()", [&] { first.gradient_ready(0, 1); });
  rejects("finish_step()", [&] { first.finish_step(); });
  rejects("synchronize_parameters()", [&] { first.synchronize_parameters(); });
  rejects("statistics()", [&] { first.statistics(); });
  rejects("memory()", [&] { first.memory(); });
  rejects("save_state()", [&] { first.save_state(); });
  rejects("load_state()", [&] { first.load_state({}); });
  rejects("set_gradient()", [&] { first.set_gradient(0, nullptr); });
  rejects("set_gradients()", [&] { first.set_gradients(std::span<const float* const>()); });
  rejects("options()", [&] { first.options(); });
  rejects("communicator()", [&] { first.communicator(); });

  CHECK_NOTHROW(second.step(0.1));
  first = std::move(second);
  CHECK_NOTHROW(first.step(0.1));
  CHECK(first.statistics().step == 2);
}

TEST_CASE("optimizer: calls of only some recipes also name a move") {
  replica mine(tensors, start());
  const auto check = [](auto& run, const std::string& call, const auto& make) {
    const auto held = std::move(run);
    CHECK_THROWS_WITH_AS(
        make(), (call + " was called on an optimizer that was moved from; call the one that it was moved to").c_str(),
        std::logic_error);
  };
  slamb::one_bit_adam<> one_bit(mine.parameters());
  check(one_bit, "slamb: measure_next_step()", [&] { one_bit.measure_next_step(); });
  slamb::zero_one_adam<> zero_one(mine.parameters());
  check(zero_one, "slamb: measure_next_step()", [&] { zero_one.measure_next_step(); });
  slamb::lamb<slamb::sign> measured(mine.parameters());
  check(measured, "slamb: measure_next_step()", [&] { measured.measure_next_step(); });
  slamb::slamb<slamb::self_communicator, slamb::explicit_mask> masked(mine.parameters());
  check(masked, "slamb: compressor()", [&] { static_cast<void>(masked.compressor()); });
  slamb::slamb<> sparse(mine.parameters());
  check(sparse, "slamb: options()", [&] { static_cast<void>(sparse.options()); });
  slamb::adamw<> whole(mine.parameters());
  check(static_cast<optimizer&>(whole), "slamb: step()", [&] { whole.step(0.1); });
}

TEST_CASE("optimizer: a move to itself, by either type, changes nothing") {
  replica mine(tensors, start());
  slamb::slamb<> run(mine.parameters());
  run.step(0.1);
  slamb::slamb<>& itself = run;
  run = std::move(itself);
  CHECK_NOTHROW(run.step(0.1));
  optimizer& any = run;
  any = std::move(run);
  CHECK_NOTHROW(run.step(0.1));
  CHECK(any.statistics().step == 3);
  CHECK(run.options().beta3 == 0.93);

  const slamb::slamb<> other(std::move(run));
  any = std::move(run);  // a moved-from optimizer
  CHECK_THROWS_AS(any.step(0.1), std::logic_error);
}

TEST_CASE("optimizer: two that are swapped continue in each other's place") {
  replica mine(tensors, start()), others(tensors, start());
  slamb::lamb<> first(mine.parameters(), {.beta1 = 0.8}), second(others.parameters(), {.beta1 = 0.7});
  first.step(0.1);
  std::swap(first, second);
  CHECK(first.options().beta1 == 0.7);
  CHECK(second.statistics().step == 1);
  std::swap(first, first);
  first.begin_step(0.1);
  std::swap<optimizer>(first, second);  // abandons the step
  CHECK(first.options().beta1 == 0.8);
  first.step(0.1);
  second.step(0.1);
  CHECK(first.statistics().step == 2);
  CHECK(second.statistics().step == 1);
  CHECK(test_support::same_bits(others.values(), train_typed_once({.beta1 = 0.7})));
}

TEST_CASE("optimizer: a chosen one that was moved from names the mistake") {
  using chosen = slamb::chosen_optimizer<slamb::adamw<>, slamb::slamb<>>;
  replica mine(tensors, start());
  chosen run = slamb::choose<slamb::adamw<>, slamb::slamb<>>(mine.parameters(), {}, {}, {});
  chosen other(std::move(run));
  CHECK_THROWS_AS(run.step(0.1), std::logic_error);
  CHECK_THROWS_AS(static_cast<void>(run.statistics()), std::logic_error);
  CHECK_THROWS_AS(run.load_state({}), std::logic_error);
  CHECK_NOTHROW(other.step(0.1));
}

TEST_CASE("optimizer: 0/1 Adam rejects learning rates in device memory at run time, through the common type") {
  replica mine(tensors, start());
  optimizer any = slamb::zero_one_adam<>(mine.parameters());
  const double rates[] = {0.1};
  const std::vector<float> before = mine.values();
  CHECK_THROWS_WITH_AS(any.step(slamb::device_learning_rates{rates}), doctest::Contains("need the rates on the host"),
                       std::logic_error);
  CHECK_THROWS_WITH_AS(any.begin_step(slamb::device_learning_rates{rates}),
                       doctest::Contains("need the rates on the host"), std::logic_error);
  CHECK(test_support::same_bits(mine.values(), before));
  CHECK_NOTHROW(any.step(0.1));
}

TEST_CASE("optimizer: a typed one to which another type was assigned names the mistake, and can still step") {
  replica mine(tensors, start());
  slamb::one_bit_adam<> typed(mine.parameters());
  optimizer& any = typed;
  any = slamb::slamb<>(mine.parameters());
  CHECK_THROWS_WITH_AS(typed.options(),
                       doctest::Contains("options() was called on an optimizer of the recipe basic_one_bit, to which"),
                       std::logic_error);
  CHECK_THROWS_AS(typed.measure_next_step(), std::logic_error);
  CHECK_THROWS_AS(typed.communicator(), std::logic_error);
  typed.step(0.01);
  CHECK(any.statistics().step == 1);
}

TEST_CASE("optimizer: is destroyed as its own type") {
  struct counting : slamb::lamb<> {
    int& destroyed;
    counting(std::span<const slamb::parameter> parameters, int& count) : slamb::lamb<>(parameters), destroyed(count) {}
    ~counting() override { ++destroyed; }
  };
  replica mine(tensors, start());
  int destroyed = 0;
  { const std::unique_ptr<optimizer> held = std::make_unique<counting>(mine.parameters(), destroyed); }
  CHECK(destroyed == 1);
}

}  // namespace optimizer_optimizer_tests
