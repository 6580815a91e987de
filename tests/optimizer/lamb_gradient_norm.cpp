// The norm of the mean gradient in statistics() when gradients are clipped, compared with double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace optimizer_lamb_gradient_norm_tests {
namespace {

using slamb::thread_communicator;
using test_support::experiment;
using test_support::model;
using test_support::replica;

const model tensors{{300}, {17, 1}, {0}, {9100}};

experiment some_steps(int world) { return test_support::make_experiment(tensors, 71, world, 4); }

/// ‖Σ g_i / N‖ of a step, in double precision.
double norm_of_mean(const std::vector<std::vector<float>>& gradients) {
  double square = 0.0;
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    double mean = 0.0;
    for (const std::vector<float>& of_rank : gradients) mean += static_cast<double>(of_rank[i]);
    mean /= static_cast<double>(gradients.size());
    square += mean * mean;
  }
  return std::sqrt(square);
}

bool is_near(const std::optional<double>& got, double expected) {
  return got.has_value() && std::abs(*got - expected) <= 1e-6 * expected;
}

/// Checks that each rank reports after each step the norm in double precision, clipped or not. A skipped step reports the norm
/// of the step before.
template <class Optimizer>
void check_norms(int world, const typename Optimizer::options_type& options,
                 const typename Optimizer::backend_type& backend) {
  CAPTURE(world);
  const experiment e = some_steps(world);
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(tensors, e.start);
    Optimizer run(mine.parameters(), options, std::move(communicator), backend);
    CHECK_FALSE(run.statistics().gradient_norm.has_value());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      std::vector<float> gradient = e.gradients[t][rank];
      const bool last_rank = rank + 1 == static_cast<std::size_t>(world);
      if (t == 2 && last_rank) gradient[5] = std::numeric_limits<float>::quiet_NaN();
      mine.set_gradient(gradient);
      run.step(0.01);
      const slamb::statistics now = run.statistics(t % 2 == 0);
      CHECK(is_near(now.gradient_norm, norm_of_mean(e.gradients[t == 2 ? 1 : t])));
      CHECK(now.skipped_steps == (t < 2 ? 0 : 1));
    }
  });
}

}  // namespace

TEST_CASE("gradient_norm: is the norm of the unclipped mean over ranks, of the last step that was taken") {
  for (const int world : {1, 2, 3}) {
    check_norms<slamb::lamb<thread_communicator>>(world, {.max_gradient_norm = 0.01}, test_support::one_thread());
    check_norms<slamb::adamw<thread_communicator>>(world, {.max_gradient_norm = 1e6}, test_support::one_thread());
    check_norms<slamb::lamb<thread_communicator, slamb::emulated_backend>>(world, {.max_gradient_norm = 0.5}, {});
  }
}

TEST_CASE("gradient_norm: the comparison with doubles can fail") {
  const experiment e = some_steps(2);
  const double norm = norm_of_mean(e.gradients[0]);
  CHECK(is_near(norm, norm));
  CHECK_FALSE(is_near(std::nullopt, norm));
  CHECK_FALSE(is_near(norm * (1.0 + 1e-5), norm));
  CHECK_FALSE(is_near(norm, norm_of_mean(e.gradients[1])));
}

TEST_CASE("gradient_norm: is absent if gradients are not clipped") {
  const experiment e = some_steps(1);
  replica mine(tensors, e.start);
  mine.set_gradient(e.gradients[0][0]);
  const auto check = [](slamb::optimizer run) {
    run.step(0.01);
    CHECK(run.statistics(true).step == 1);
    CHECK_FALSE(run.statistics(true).gradient_norm.has_value());
  };
  check(slamb::lamb<>(mine.parameters()));
  check(slamb::adamw<>(mine.parameters(), {.max_gradient_norm = std::numeric_limits<double>::infinity()}));
  check(slamb::slamb<>(mine.parameters()));
  check(slamb::one_bit_adam<>(mine.parameters()));
  check(slamb::zero_one_adam<>(mine.parameters()));
}

TEST_CASE("gradient_norm: is the norm of the quantized mean if there is a quantizer") {
  using compressed = slamb::lamb<slamb::int8, slamb::residual<>>;
  const experiment e = some_steps(1);
  replica mine(tensors, e.start);
  mine.set_gradient(e.gradients[0][0]);
  compressed run(mine.parameters(), {.max_gradient_norm = 1.0, .compress_single_rank = true});
  run.step(0.01);
  const double norm = norm_of_mean(e.gradients[0]);
  const std::optional<double> got = run.statistics().gradient_norm;
  REQUIRE(got.has_value());
  CHECK(std::abs(*got - norm) <= 0.02 * norm);  // a byte for each element loses less
  CHECK_FALSE(is_near(got, norm));
}

TEST_CASE("gradient_norm: is cleared when a state is loaded, and kept when a step fails") {
  const experiment e = some_steps(1);
  replica mine(tensors, e.start);
  mine.set_gradient(e.gradients[0][0]);
  slamb::lamb<> run(mine.parameters(), {.max_gradient_norm = 1.0});
  run.step(0.01);
  const double norm = norm_of_mean(e.gradients[0]);
  CHECK_THROWS_AS(run.step(-1.0), std::invalid_argument);
  CHECK(is_near(run.statistics().gradient_norm, norm));
  run.load_state(run.save_state());
  CHECK(run.statistics().step == 1);
  CHECK_FALSE(run.statistics().gradient_norm.has_value());
  run.step(0.01);
  CHECK(is_near(run.statistics().gradient_norm, norm));
}

}  // namespace optimizer_lamb_gradient_norm_tests
