// examples/custom_optimizer.cpp: a user-defined optimizer computes its equations, on both backends, with checkpoints, plans and
// choose.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"

#define LION_WITHOUT_MAIN
#include "../../examples/custom_optimizer.cpp"

namespace properties_custom_optimizer_tests {
namespace {

using ranks = slamb::thread_communicator;
using on_host = lion<ranks>;
using on_emulator = lion<ranks, slamb::emulated_backend>;

constexpr std::size_t sizes[] = {1, 15, 8193, 130};
constexpr int groups[] = {0, 1, 0, 1};
constexpr std::size_t steps = 6;
constexpr double rates[][2] = {{0.01, 0.02}, {0.01, 0.03}, {0.0, 0.01}, {0.02, 0.02}, {0.01, 0.0}, {0.03, 0.01}};

/// The gradient of rank r at step t. It is never so small that rounding decides the sign of x.
float gradient_at(int rank, std::size_t t, std::size_t tensor, std::size_t i) {
  const std::uint32_t word = slamb::philox(static_cast<std::uint64_t>(rank), t * 8 + tensor, i).word[0];
  const float magnitude = 0.25F + static_cast<float>(word >> 8U) * 0x1p-24F;
  return (word & 1U) != 0 ? magnitude : -magnitude;
}
float start_at(std::size_t tensor, std::size_t i) { return 0.5F - static_cast<float>((i * 7 + tensor) % 100) * 0.01F; }

/// The memory of one rank.
struct replica {
  std::vector<std::vector<float>> data, gradient;
  std::vector<slamb::parameter> tensors;

  replica() {
    for (std::size_t n = 0; n < std::size(sizes); ++n) {
      data.emplace_back(sizes[n]);
      gradient.emplace_back(sizes[n]);
      for (std::size_t i = 0; i < sizes[n]; ++i) data[n][i] = start_at(n, i);
    }
    for (std::size_t n = 0; n < std::size(sizes); ++n)
      tensors.push_back(
          {.data = data[n].data(), .gradient = gradient[n].data(), .size = sizes[n], .options = {.group = groups[n]}});
  }
  void compute(int rank, std::size_t t) {
    for (std::size_t n = 0; n < std::size(sizes); ++n)
      for (std::size_t i = 0; i < sizes[n]; ++i) gradient[n][i] = gradient_at(rank, t, n, i);
  }
  std::vector<float> all() const {
    std::vector<float> values;
    for (const auto& tensor : data) values.insert(values.end(), tensor.begin(), tensor.end());
    return values;
  }
};

enum class mistake { none, tie_is_minus, swapped_betas, mean_of_signals };

/// The equations, in double precision.
std::vector<double> expected(int world, const lion_options& o, std::size_t last, mistake wrong = mistake::none) {
  const double beta1 = wrong == mistake::swapped_betas ? o.beta2 : o.beta1;
  const double beta2 = wrong == mistake::swapped_betas ? o.beta1 : o.beta2;
  std::vector<double> values;
  for (std::size_t n = 0; n < std::size(sizes); ++n)
    for (std::size_t i = 0; i < sizes[n]; ++i) {
      double p = start_at(n, i);
      std::vector<double> m(static_cast<std::size_t>(world), 0.0);
      for (std::size_t t = 0; t < last; ++t) {
        double votes = 0.0, sum = 0.0;
        for (int r = 0; r < world; ++r) {
          double& own = m[static_cast<std::size_t>(r)];
          const double g = gradient_at(r, t, n, i), x = beta1 * own + (1.0 - beta1) * g;
          votes += x < 0.0 ? -1.0 : 1.0;
          sum += x;
          own = beta2 * own + (1.0 - beta2) * g;
        }
        if (wrong == mistake::mean_of_signals) votes = sum;
        const bool is_minus = votes < 0.0 || (wrong == mistake::tie_is_minus && votes == 0.0);
        p -= rates[t][groups[n]] * ((is_minus ? -1.0 : 1.0) + o.weight_decay * p);
      }
      values.push_back(p);
    }
  return values;
}

double largest_error(const std::vector<float>& reached, const std::vector<double>& wanted) {
  REQUIRE(reached.size() == wanted.size());
  double error = 0.0;
  for (std::size_t i = 0; i < reached.size(); ++i)
    error = std::max(error, std::abs(static_cast<double>(reached[i]) - wanted[i]));
  return error;
}

template <class Optimizer>
typename Optimizer::backend_type backend() {
  if constexpr (requires(typename Optimizer::backend_type b) { b.threads; })
    return {.threads = 1};
  else
    return {};
}

/// Trains on `world` ranks; `take(optimizer, rank, t)` takes step t. Returns the parameters of each rank.
template <class Optimizer, class Take>
std::vector<std::vector<float>> trained(int world, const lion_options& o, const Take& take, std::size_t last = steps) {
  std::vector<std::vector<float>> reached(static_cast<std::size_t>(world));
  slamb::run_ranks(world, [&](ranks mine) {
    const int rank = mine.rank();
    replica memory;
    Optimizer optimizer(memory.tensors, o, std::move(mine), backend<Optimizer>());
    for (std::size_t t = 0; t < last; ++t) {
      memory.compute(rank, t);
      take(optimizer, memory, t);
    }
    optimizer.compare_ranks();
    reached[static_cast<std::size_t>(rank)] = memory.all();
  });
  return reached;
}

const auto whole_step = [](auto& optimizer, replica& /*memory*/, std::size_t t) { optimizer.step(rates[t]); };

}  // namespace

TEST_CASE("custom_optimizer: follows an oracle, for odd and even numbers of ranks") {
  const lion_options o{.beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1};
  for (const int world : {1, 2, 3, 4}) {
    const auto reached = trained<on_host>(world, o, whole_step);
    CAPTURE(world);
    CHECK(largest_error(reached[0], expected(world, o, steps)) < 1e-6);
    CHECK(largest_error(reached[0], expected(world, o, steps, mistake::swapped_betas)) > 1e-3);
    CHECK((largest_error(reached[0], expected(world, o, steps, mistake::tie_is_minus)) > 1e-3) == (world % 2 == 0));
    if (world > 2) CHECK(largest_error(reached[0], expected(world, o, steps, mistake::mean_of_signals)) > 1e-3);
    for (const auto& other : reached) CHECK(other == reached[0]);
  }
}

TEST_CASE("custom_optimizer: the CUDA backend, steps in parts and a restored state give the same bits") {
  const lion_options o{.weight_decay = 0.05};
  const auto reached = trained<on_host>(3, o, whole_step);
  CHECK(trained<on_emulator>(3, o, whole_step) == reached);
  const auto in_parts = [](auto& optimizer, replica& memory, std::size_t t) {
    optimizer.begin_step(rates[t]);
    for (std::size_t n = memory.tensors.size(); n-- > 0;) optimizer.gradient_ready(n, 1);
    optimizer.finish_step();
  };
  CHECK(trained<on_host>(3, o, in_parts) == reached);
  CHECK(trained<on_emulator>(3, o, in_parts) == reached);

  std::vector<std::vector<float>> resumed(3);
  slamb::run_ranks(3, [&](ranks mine) {
    const int rank = mine.rank();
    replica memory;
    std::vector<std::byte> state;
    {
      on_host first(memory.tensors, o, std::move(mine), {.threads = 1});
      for (std::size_t t = 0; t < 3; ++t) {
        memory.compute(rank, t);
        first.step(rates[t]);
      }
      state = first.save_state();
      mine = std::move(first.communicator());
    }
    on_host second(memory.tensors, o, std::move(mine), {.threads = 1});
    second.load_state(state);
    for (std::size_t t = 3; t < steps; ++t) {
      memory.compute(rank, t);
      second.step(rates[t]);
    }
    CHECK(second.statistics().step == steps);
    CHECK(second.statistics().phase == "vote");
    resumed[static_cast<std::size_t>(rank)] = memory.all();
  });
  CHECK(resumed == reached);
}

TEST_CASE("custom_optimizer: a gradient that is not finite on one rank skips the step on all") {
  for (const int world : {1, 3}) {
    const auto take = [](auto& optimizer, replica& memory, std::size_t t) {
      if (t == 1 && optimizer.communicator().rank() == optimizer.communicator().size() - 1)
        memory.gradient[2][8000] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> before = memory.all();
      optimizer.step(rates[t]);
      CHECK((memory.all() == before) == (t == 1));
      CHECK(optimizer.statistics().skipped_steps == (t == 0 ? 0U : 1U));
    };
    trained<on_host>(world, {}, take, 2);
    trained<on_emulator>(world, {}, take, 2);
  }
}

TEST_CASE("custom_optimizer: sends the planned bytes") {
  std::vector<slamb::plan::tensor_shape> shapes;
  for (const std::size_t size : sizes) shapes.push_back({.size = size});
  for (const int world : {1, 2, 3, 4}) {
    const auto plan = slamb::plan::plan_traffic<lion<>>(shapes, {}, {.ranks = world});
    slamb::run_ranks(world, [&](ranks mine) {
      replica memory;
      on_host optimizer(memory.tensors, {}, std::move(mine), {.threads = 1});
      for (std::size_t t = 0; t < steps; ++t) optimizer.step(0.01);
      CHECK(optimizer.statistics().traffic == plan.total(steps));
      CHECK(plan.step(2).total().rounds == (world == 1 ? 0U : 2U));
    });
  }
  // With 2 ranks: encode reads g and m and writes 1/8; average reads 1/8 and writes half of 4 + 1/8; receive reads g, m, p and 1/8
  // and writes m and p.
  const double bytes = (8 + 0.125) + (0.125 + 2 + 0.0625) + (12 + 0.125 + 8);
  CHECK(slamb::plan::plan_traffic<lion<>>(shapes, {}, {.ranks = 2}).memory_bytes(10) == bytes);
  // A single rank sends nothing: the check reads g and m, and the pass reads g, m and p and writes m and p.
  CHECK(slamb::plan::plan_traffic<lion<>>(shapes, {}, {.ranks = 1}).memory_bytes(10) == 8 + 12 + 8);
  // With parameters and gradients of two bytes, four accesses take two bytes less: two reads of g, and p read and written.
  const slamb::plan::storage_bytes two{.parameter = 2.0, .data = 2.0, .gradient = 2.0};
  CHECK(slamb::plan::plan_traffic<lion<>>(shapes, {}, {.ranks = 2, .stored = two}).memory_bytes(10) ==
        bytes - 2 * 2 - 2 * 2);
}

TEST_CASE("custom_optimizer: choose takes it") {
  slamb::run_ranks(2, [](ranks mine) {
    const int rank = mine.rank();
    replica memory;
    auto kept = slamb::choose<slamb::lamb<ranks>, on_host>(memory.tensors, {}, {}, std::move(mine),
                                                           {.keep = slamb::choose_options::keep_rule::compressed},
                                                           {.threads = 1});
    CHECK(kept.is_compressed());
    memory.compute(rank, 0);
    kept.step(rates[0]);
    CHECK(largest_error(memory.all(), expected(2, {}, 1)) < 1e-6);
    const std::vector<std::byte> state = kept.save_state();
    auto next = slamb::choose<slamb::lamb<ranks>, on_host>(memory.tensors, {}, {}, std::move(kept.communicator()),
                                                           {.saved = state}, {.threads = 1});
    CHECK(next.is_compressed());
    CHECK(next.statistics().step == 1);
    auto tried = slamb::choose<slamb::lamb<ranks>, on_host>(memory.tensors, {}, {}, std::move(next.communicator()),
                                                            {.steps = 1, .rounds = 1}, {.threads = 1});
    CHECK(tried.statistics().chosen.trial_steps == 1);
  });
}

TEST_CASE("custom_optimizer: options change between steps, and one that it does not have is rejected by name") {
  replica memory;
  lion<> optimizer(memory.tensors, {});
  optimizer.set_options({.beta1 = 0.8, .beta2 = 0.9});
  CHECK_THROWS_WITH_AS(optimizer.set_options({.beta1 = 0.1, .epsilon = 1e-8}),
                       "slamb: set_options() was given epsilon, which this optimizer does not have",
                       std::invalid_argument);
  for (std::size_t t = 0; t < 3; ++t) {
    memory.compute(0, t);
    optimizer.step(rates[t]);
  }
  CHECK(largest_error(memory.all(), expected(1, {.beta1 = 0.8, .beta2 = 0.9}, 3)) < 1e-6);
  CHECK(largest_error(memory.all(), expected(1, {}, 3)) > 1e-4);
}

TEST_CASE("custom_optimizer: options out of range, and options that differ between ranks, are rejected") {
  replica memory;
  const auto refusal = [&](const lion_options& o) {
    try {
      lion<>(memory.tensors, o);
    } catch (const std::invalid_argument& refused) {
      return std::string(refused.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(refusal({}) == "nothing was thrown");
  CHECK(refusal({.beta1 = 1.0}) == "slamb: beta1 = 1, but it must be in [0, 1)");
  CHECK(refusal({.weight_decay = -1.0}).find("weight_decay = -1") != std::string::npos);
  slamb::run_ranks(2, [](ranks mine) {
    replica own;
    const lion_options o{.beta2 = mine.rank() == 0 ? 0.9 : 0.99};
    std::string said;
    try {
      on_host(own.tensors, o, std::move(mine), {.threads = 1});
    } catch (const slamb::rank_mismatch_error& differs) {
      said = differs.what();
    }
    CHECK(said.find("ranks differ in beta2: 0.9 on rank 0, 0.99 on rank 1") != std::string::npos);
  });
}

}  // namespace properties_custom_optimizer_tests
