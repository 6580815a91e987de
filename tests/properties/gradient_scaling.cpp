// Scaled gradients and found_inf, for every recipe: a step with scaled gradients must have the bits of a step with the gradients
// themselves, and an overflow that one rank reports must skip the step on all.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/detail/emulator.hpp"
#include "slamb/backend/cuda/detail/stream_launcher.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"
#include "support/thread_nodes.hpp"

namespace properties_gradient_scaling_tests {
namespace {

using test_support::experiment;
using test_support::made_optimizer;
using test_support::optimizer_maker;
using test_support::recipe;
using test_support::replica;
using test_support::same_bits;
using test_support::trajectory;

/// One rank of a training, between its steps.
struct rank_at_step {
  made_optimizer& optimizer;
  std::size_t rank, step;
  std::vector<float>& gradient;  // [n] of this step
};

/// Trains; calls before(rank_at_step) before each step, and after(rank_at_step) behind it.
trajectory trained(
    const experiment& e, const optimizer_maker& make, const std::function<void(rank_at_step)>& before,
    const std::function<void(rank_at_step)>& after = [](rank_at_step) {}) {
  trajectory reached = test_support::place_of(e);
  slamb::run_ranks(e.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer optimizer =
        make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      std::vector<float> gradient = e.gradients[t][rank];
      before({optimizer, rank, t, gradient});
      mine.set_gradient(gradient);
      optimizer.step(e.rates[t]);
      reached[t][rank] = mine.values();
      after({optimizer, rank, t, gradient});
    }
  });
  return reached;
}

void scale(std::vector<float>& gradient, float by) {
  for (float& g : gradient) g *= by;
}

experiment small_experiment(int world, std::size_t steps = test_support::steps_of_recipes) {
  experiment e = test_support::make_experiment({{300}, {17, 1}, {9100}}, 31, world, steps);
  test_support::use_one_rate(e, 0.01);
  return e;
}

const std::function<void(rank_at_step)> nothing = [](rank_at_step) {};

}  // namespace

TEST_CASE("gradient scaling: powers of two change no bits, whichever rank has which, from the host or from memory") {
  for (const int world : {1, 2})
    for (const recipe& r : test_support::every_recipe()) {
      CAPTURE(r.name);
      const experiment e = small_experiment(world);
      const trajectory expected = trained(e, r.make, nothing);
      std::vector<float> cell(2, 1.0F);
      const trajectory scaled = trained(e, r.make, [&](rank_at_step at) {
        const int power = static_cast<int>((at.step + at.rank) % 5) * 4;
        const float factor = std::ldexp(1.0F, -power);
        cell[at.rank] = std::ldexp(1.0F, 3);
        at.optimizer.set_gradient_scaling({.factor = static_cast<double>(factor), .loss_scale = &cell[at.rank]});
        scale(at.gradient, std::ldexp(1.0F, power + 3));
      });
      CHECK(same_bits(scaled, expected));
    }
}

TEST_CASE("gradient scaling: any factor acts as the product that it is, and without it other parameters are reached") {
  for (const recipe& r : test_support::every_recipe()) {
    CAPTURE(r.name);
    const experiment e = small_experiment(2, 6);
    constexpr double third = 1.0 / 3.0;
    const trajectory expected =
        trained(e, r.make, [&](rank_at_step at) { scale(at.gradient, static_cast<float>(third)); });
    const trajectory scaled =
        trained(e, r.make, [&](rank_at_step at) { at.optimizer.set_gradient_scaling({.factor = third}); });
    CHECK(same_bits(scaled, expected));
    // Adam's update does not depend on the size of gradients but for ε; its state does.
    const trajectory forgotten = trained(e, r.make, [&](rank_at_step at) {
      if (at.step >= 3) at.optimizer.set_gradient_scaling({.factor = third});
    });
    CHECK_FALSE(same_bits(forgotten, expected));
  }
}

TEST_CASE("gradient scaling: overflow is judged after scaling") {
  for (const recipe& r : test_support::every_recipe()) {
    CAPTURE(r.name);
    const experiment e = small_experiment(2, 2);
    const auto steps_with = [&](float raw, double factor) {
      std::atomic<std::uint64_t> taken{0}, dropped{0};
      trained(
          e, r.make,
          [&](rank_at_step at) {
            at.optimizer.set_gradient_scaling({.factor = factor});
            scale(at.gradient, raw);
          },
          [&](rank_at_step at) {
            taken = at.optimizer.statistics().step;
            dropped = at.optimizer.statistics().local_skips;
          });
      return taken - dropped;
    };
    CHECK(steps_with(1e30F, 1e-30) == 2);
    CHECK(steps_with(1.0F, 1e30) == 0);
  }
}

TEST_CASE("gradient scaling: found_inf of one rank skips the step on all, and is set on all") {
  for (const recipe& r : test_support::every_recipe()) {
    CAPTURE(r.name);
    experiment e = small_experiment(2);
    // A training of the same steps without the skipped one.
    constexpr std::size_t skipped = 2;
    experiment without = e;
    without.gradients.erase(without.gradients.begin() + skipped);
    without.rates.erase(without.rates.begin() + skipped);
    const trajectory expected = trained(without, r.make, nothing);
    std::vector<float> found(2, 0.0F);
    std::atomic<int> set{0}, unset{0};
    const trajectory got = trained(
        e, r.make,
        [&](rank_at_step at) {
          at.optimizer.set_gradient_scaling({.found_inf = &found[at.rank]});
          found[at.rank] = at.step == skipped && at.rank == 1 ? 2.0F : 0.0F;
        },
        [&](rank_at_step at) {
          const bool is_set = found[at.rank] == 1.0F;
          (at.step == skipped ? set : unset) += is_set ? 1 : 0;
        });
    CHECK(set == 2);
    CHECK(unset == 0);
    for (std::size_t t = 0; t < e.steps(); ++t)
      if (t != skipped)
        for (std::size_t rank = 0; rank < 2; ++rank)
          CHECK(same_bits(std::span<const float>(got[t][rank]),
                          std::span<const float>(expected[t - (t > skipped ? 1 : 0)][rank])));
  }
}

TEST_CASE("gradient scaling: found_inf is set by an overflow that the step finds, and skips steps that check nothing") {
  std::vector<float> found(2, 0.0F);
  for (const bool checks : {true, false})
    for (const int world : {1, 2}) {
      const experiment e = small_experiment(world, 2);
      const auto make = test_support::maker_of<slamb::adamw<slamb::thread_communicator>>({.skip_non_finite = checks});
      std::atomic<std::uint64_t> skips{0};
      trained(
          e, make,
          [&](rank_at_step at) {
            at.optimizer.set_gradient_scaling({.found_inf = &found[at.rank]});
            if (at.step == 0 || at.rank != 0) return;
            if (checks) at.gradient[7] = std::numeric_limits<float>::infinity();
            if (!checks) found[0] = 1.0F;
          },
          [&](rank_at_step at) {
            CHECK(found[at.rank] == (at.step == 0 ? 0.0F : 1.0F));
            if (at.step == 1) found[at.rank] = 0.0F;
            skips = at.optimizer.statistics().skipped_steps;
          });
      CHECK(skips == 1);
    }
}

TEST_CASE("gradient scaling: found_inf counts until all gradients are ready, also in steps in parts and in nodes") {
  const experiment e = small_experiment(1, 1);
  const auto check = [&](auto communicator, std::size_t rank, bool in_parts) {
    replica mine(e.tensors, e.start);
    float found = 0.0F;
    slamb::lamb<decltype(communicator)> optimizer(mine.parameters(), {.skip_non_finite = false},
                                                  std::move(communicator), {.threads = 1});
    optimizer.set_gradient_scaling({.found_inf = &found});
    mine.set_gradient(e.gradients[0][0]);
    if (in_parts) {
      optimizer.begin_step(0.01);
      optimizer.gradient_ready(1, 2);
      if (rank == 1) found = 1.0F;
      optimizer.finish_step();
    } else {
      if (rank == 1) found = 1.0F;
      optimizer.step(0.01);
    }
    CHECK(found == 1.0F);
    CHECK(optimizer.statistics().skipped_steps == 1);
    CHECK(same_bits(std::span<const float>(mine.values()), std::span<const float>(e.start)));
  };
  for (const bool in_parts : {false, true}) {
    slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      check(std::move(communicator), rank, in_parts);
    });
    for (const std::vector<int>& sizes : {std::vector<int>{2}, std::vector<int>{2, 2}}) {
      test_support::thread_nodes nodes(sizes);
      nodes.run([&](test_support::nodes_of_threads communicator, std::size_t rank) {
        check(std::move(communicator), rank, in_parts);  // rank 1 does not lead its node
      });
    }
  }
}

TEST_CASE("gradient scaling: a scale that is 0 or not finite skips the step") {
  const experiment e = small_experiment(2, 1);
  for (const float loss_scale : {0.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const auto make = test_support::maker_of<slamb::adamw<slamb::thread_communicator>>({});
    const trajectory got =
        trained(e, make, [&](rank_at_step at) { at.optimizer.set_gradient_scaling({.loss_scale = &loss_scale}); });
    CHECK(same_bits(std::span<const float>(got[0][0]), std::span<const float>(e.start)));
  }
}

TEST_CASE("gradient scaling: a local step of 0/1 Adam without its gradient sets found_inf on that rank alone") {
  const experiment e = small_experiment(2, 10);
  const auto make = test_support::maker_of<slamb::zero_one_adam<slamb::thread_communicator>>(
      {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}});
  std::vector<float> found(2, 0.0F);
  std::vector<std::uint64_t> dropped(2, 0);
  constexpr std::size_t local = 9;  // the tenth step has no exchange: support/every_recipe.hpp
  trained(
      e, make,
      [&](rank_at_step at) {
        at.optimizer.set_gradient_scaling({.found_inf = &found[at.rank]});
        if (at.step == local && at.rank == 1) at.gradient[0] = std::numeric_limits<float>::quiet_NaN();
      },
      [&](rank_at_step at) { dropped[at.rank] = at.optimizer.statistics().local_skips; });
  CHECK(found == std::vector<float>{0.0F, 1.0F});
  CHECK(dropped == std::vector<std::uint64_t>{0, 1});
}

TEST_CASE("gradient scaling: a factor out of range is rejected, and nothing has changed") {
  float data = 1.0F;
  const float gradient = 0.5F;
  slamb::lamb<> optimizer(std::vector<slamb::parameter>{{&data, &gradient, 1}});
  for (const double factor : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan(""), 1e-50, 1e50})
    CHECK_THROWS_WITH_AS(optimizer.set_gradient_scaling({.factor = factor}),
                         doctest::Contains("slamb: gradient_scaling's factor = "), std::invalid_argument);
  optimizer.begin_step(0.1);
  CHECK_THROWS_AS(optimizer.set_gradient_scaling({}), std::logic_error);
  CHECK_NOTHROW(optimizer.finish_step());
  CHECK(optimizer.statistics().step == 1);
}

namespace {

/// The emulator, as a device that cannot reach the memory at one address.
class device_apart : public slamb::detail::cuda::emulator {
 public:
  explicit device_apart(const float* elsewhere) : elsewhere_(elsewhere) {}

  void require_memory(const void* memory, const char* what) const {
    if (memory == elsewhere_) throw std::invalid_argument(std::string(what) + " is elsewhere");
  }

 private:
  const float* elsewhere_;
};

struct backend_apart {
  const float* elsewhere = nullptr;
  std::size_t cache_bytes = 1U << 20U;
  slamb::allocator memory = slamb::detail::host_allocator();

  using stream_type = slamb::host_stream;
  using launcher_type = slamb::detail::cuda::stream_launcher<device_apart>;

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const { return launcher_type(device_apart(elsewhere)); }
};

}  // namespace

TEST_CASE(
    "gradient scaling: cells that the device cannot reach are rejected by name, and the scaling stays as it was") {
  std::vector<float> data(20, 1.0F), gradients(20, 0.5F);
  const slamb::parameter tensor{.data = data.data(), .gradient = gradients.data(), .size = 20};
  float found_inf = 1.0F, elsewhere = 0.0F;
  slamb::adamw<slamb::self_communicator, backend_apart> optimizer({&tensor, 1}, {}, {}, {.elsewhere = &elsewhere});
  optimizer.set_gradient_scaling({.found_inf = &found_inf});
  CHECK_THROWS_WITH_AS(optimizer.set_gradient_scaling({.loss_scale = &elsewhere}),
                       "gradient_scaling's loss_scale is elsewhere", std::invalid_argument);
  CHECK_THROWS_WITH_AS(optimizer.set_gradient_scaling({.found_inf = &elsewhere}),
                       "gradient_scaling's found_inf is elsewhere", std::invalid_argument);
  optimizer.step(0.1);
  CHECK(optimizer.statistics().skipped_steps == 1);  // the first cell is still read
  CHECK(data == std::vector<float>(20, 1.0F));
}

}  // namespace properties_gradient_scaling_tests
