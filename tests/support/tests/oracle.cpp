// Tests of the oracle against recorded runs, and of the generators and measures that all other tests use.
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/generate.hpp"
#include "support/record.hpp"
#include "support/trace.hpp"

#ifndef SLAMB_TEST_DATA
#error "define SLAMB_TEST_DATA as the path of tests/data"
#endif

namespace support_tests_oracle_tests {
namespace {

using test_support::trace;

constexpr double infinity = std::numeric_limits<double>::infinity();

trace recorded(const std::string& name) {
  return test_support::read_trace(std::filesystem::path(SLAMB_TEST_DATA) / name);
}

/// max |oracle − recorded| / max |recorded|, over all steps and ranks.
template <class Settings>
double error_of(const trace& given, const Settings& how) {
  return test_support::max_relative_error(test_support::run_oracle(given, how), given.expected);
}

}  // namespace

TEST_CASE("oracle: reaches the recorded parameters of AdamW and LAMB") {
  for (const std::string name : {"adamw", "lamb"}) {
    const trace given = recorded(name);
    const double error = error_of(given, test_support::oracle_settings(given.settings));
    CAPTURE(name);
    CHECK(error <= 1e-6);
  }
}

TEST_CASE("oracle: reaches the recorded parameters of SLAMB in both forms") {
  for (const std::string name : {"slamb-product", "slamb-blend"}) {
    const trace given = recorded(name);
    const double error = error_of(given, test_support::oracle_slamb_settings(given.settings));
    CAPTURE(name);
    CHECK(error <= 1e-6);
  }
}

TEST_CASE("oracle: the comparison with recorded SLAMB can fail") {
  for (const std::string name : {"slamb-product", "slamb-blend"}) {
    CAPTURE(name);
    const trace given = recorded(name);
    const auto error_with = [&](auto change) {
      auto how = test_support::oracle_slamb_settings(given.settings);
      change(how);
      return error_of(given, how);
    };
    CHECK(error_with([](auto& how) { how.beta3 = 0.95; }) > 1e-4);
    CHECK(error_with([](auto& how) { how.local_steps = 9; }) > 1e-4);
    CHECK(error_with([](auto& how) { how.dense_below = 0; }) > 1e-4);
    CHECK(error_with([](auto& how) { how.bias_correction = false; }) > 1e-4);
    CHECK(error_with([](auto& how) { how.trust_upper = 0.05; }) > 1e-4);
    CHECK(error_with([](auto& how) {
            how.form = how.form == oracle::rescaling::blend ? oracle::rescaling::product : oracle::rescaling::blend;
          }) > 1e-4);
  }
}

TEST_CASE("oracle: the comparison with recorded LAMB can fail") {
  const trace given = recorded("lamb");
  auto how = test_support::oracle_settings(given.settings);
  SUBCASE("AdamW") { how.algorithm = oracle::method::adamw; }
  SUBCASE("clamp") { how.trust_upper = 0.01; }
  SUBCASE("clipping") { how.max_gradient_norm = 0.01; }
  SUBCASE("wrong epsilon") { how.epsilon = 1e-2; }
  CHECK(error_of(given, how) > 1e-4);
}

TEST_CASE("oracle: one step of each switch, by hand") {
  // One element: m̂ = g, v̂ = g² at the first step, so u = sign(g) + λp up to ε.
  oracle::settings how{.epsilon = 0.0};
  oracle::tensor only{.size = 1, .weight_decay = 0.5};
  double expected = 0.0;
  SUBCASE("LAMB: u = 1 + 0.5·2 = 2, ratio 2/2") { expected = 2.0 - 0.1 * 1.0 * 2.0; }
  SUBCASE("AdamW") {
    how.algorithm = oracle::method::adamw;
    expected = 2.0 - 0.1 * 2.0;
  }
  SUBCASE("no weight decay: u = 1, ratio 2") {
    only.weight_decay = 0.0;
    expected = 2.0 - 0.1 * 2.0 * 1.0;
  }
  SUBCASE("no weight decay, and then no ratio") {
    only.weight_decay = 0.0;
    how.adapt_without_weight_decay = false;
    expected = 2.0 - 0.1 * 1.0;
  }
  SUBCASE("clamped from above") {
    how.trust_upper = 0.25;
    expected = 2.0 - 0.1 * 0.25 * 2.0;
  }
  SUBCASE("clamped from below") {
    how.trust_lower = 3.0;
    expected = 2.0 - 0.1 * 3.0 * 2.0;
  }
  SUBCASE("not adapted, and a factor of the learning rate") {
    only.weight_decay = 0.0;
    only.adapt = false;
    only.learning_rate_factor = 0.5;
    expected = 2.0 - 0.05 * 1.0;
  }
  SUBCASE("no bias correction: m = 0.3·g, √v = √0.1·g; u = 0.3/√0.1 + 1, ratio 2/u") {
    how.beta1 = 0.7;
    how.beta2 = 0.9;
    how.bias_correction = false;
    how.algorithm = oracle::method::adamw;
    expected = 2.0 - 0.1 * (0.3 / std::sqrt(0.1) + 1.0);
  }
  SUBCASE("clipping to norm 1 with ε = 1: g = m̂ = √v̂ = 4/(4 + 1e-6), u = g/(g + 1) + 1") {
    how.epsilon = 1.0;
    how.max_gradient_norm = 1.0;
    how.algorithm = oracle::method::adamw;
    const double g = 4.0 / 4.000001;
    expected = 2.0 - 0.1 * (g / (g + 1.0) + 1.0);
  }
  SUBCASE("no clipping at c = ∞ with ε = 1: u = 4/(4 + 1) + 1") {
    how.epsilon = 1.0;
    how.max_gradient_norm = infinity;
    how.algorithm = oracle::method::adamw;
    expected = 2.0 - 0.1 * 1.8;
  }
  oracle::adam_family run({only}, {2.0}, how);
  run.step(0.1, {{3.0}, {5.0}});
  CHECK(run.parameters()[0] == doctest::Approx(expected).epsilon(1e-12));
  CHECK(run.parameters()[0] != doctest::Approx(expected + 1e-3).epsilon(1e-12));
}

TEST_CASE("oracle: an element that was never exchanged has the age of the run") {
  oracle::slamb run({{.size = 2}}, {1.0, 1.0}, 2, {.dense_below = 0});
  const std::vector<oracle::vector> gradients{{1.0, 1.0}, {2.0, 2.0}};
  run.step(0.1, gradients, {0, 1});
  CHECK(run.ages() == std::vector<std::uint64_t>{1, 0});
  run.step(0.1, gradients, {0, 0});
  CHECK(run.ages() == std::vector<std::uint64_t>{2, 1});
  run.step(0.1, gradients, {1, 0});
  CHECK(run.ages() == std::vector<std::uint64_t>{0, 2});
}

TEST_CASE("oracle: dense tensors are exchanged with every mask") {
  oracle::tensor small{.size = 3};
  oracle::slamb_settings how{.dense_below = 3};
  bool dense = true;
  SUBCASE("none of the reasons") { dense = false; }
  SUBCASE("one dimension") { small.dimensions = 1; }
  SUBCASE("small") { how.dense_below = 4; }
  SUBCASE("by option") { small.compress = false; }
  oracle::slamb run({small}, {1.0, 2.0, 3.0}, 2, how);
  run.step(0.1, {{1.0, 1.0, 1.0}, {2.0, 2.0, 2.0}}, {0, 0, 0});
  CHECK((run.momentum(0) == run.momentum(1)) == dense);
  CHECK(run.exchanged() == std::vector<std::uint8_t>(3, dense ? 1 : 0));
}

TEST_CASE("oracle: SLAMB on a single rank that sends everything is LAMB with the clamp") {
  const std::size_t n = 40;
  const auto start = test_support::widened(test_support::random_parameters(1, n));
  oracle::slamb sparse({{.size = 25}, {.size = 15}}, start, 1, {.dense_below = 0});
  oracle::adam_family dense({{.size = 25}, {.size = 15}}, start, {.trust_lower = 0.01, .trust_upper = 1000.0});
  for (std::uint64_t step = 0; step < 10; ++step) {
    const auto gradients = test_support::widened(test_support::random_gradients(2, step, 1, n));
    sparse.step(0.01, gradients, std::vector<std::uint8_t>(n, 1));
    dense.step(0.01, gradients);
  }
  CHECK(test_support::max_relative_error(sparse.parameters(0), dense.parameters()) < 1e-14);
}

TEST_CASE("oracle: the mean momentum over ranks is the dense one, for every mask") {
  const std::size_t n = 30;
  const auto start = test_support::widened(test_support::random_parameters(1, n));
  oracle::slamb sparse({{.size = n}}, start, 3, {.dense_below = 0});
  oracle::vector dense(n, 0.0);
  for (std::uint64_t step = 0; step < 20; ++step) {
    const auto gradients = test_support::widened(test_support::random_gradients(2, step, 3, n));
    sparse.step(0.01, gradients, test_support::random_mask(3, step, n, 0.2));
    for (std::size_t j = 0; j < n; ++j) {
      dense[j] = 0.9 * dense[j] + 0.1 * oracle::mean(gradients, j);
      const double mean = (sparse.momentum(0)[j] + sparse.momentum(1)[j] + sparse.momentum(2)[j]) / 3.0;
      CHECK(mean == doctest::Approx(dense[j]).epsilon(1e-12));
      if (sparse.exchanged()[j] != 0) CHECK(sparse.momentum(0)[j] == sparse.momentum(2)[j]);
    }
  }
  CHECK(sparse.parameters(0) != sparse.parameters(1));
  sparse.synchronize_parameters();
  CHECK(sparse.parameters(0) == sparse.parameters(1));
}

TEST_CASE("oracle: parameters that do not fill the tensors are rejected") {
  CHECK_THROWS_AS(oracle::adam_family({{.size = 2}}, {1.0}, {}), std::invalid_argument);
  CHECK_THROWS_AS(oracle::slamb({{.size = 2}}, {1.0}, 1, {}), std::invalid_argument);
}

TEST_CASE("generate: equal seeds give equal numbers, others give others") {
  using namespace test_support;
  CHECK(random_gradient(1, 2, 3, 50) == random_gradient(1, 2, 3, 50));
  CHECK(random_gradient(1, 2, 3, 50) != random_gradient(1, 2, 4, 50));
  CHECK(random_gradient(1, 2, 3, 50) != random_gradient(1, 3, 3, 50));
  CHECK(random_gradient(1, 2, 3, 50) != random_gradient(2, 2, 3, 50));
  CHECK(random_gradient(1, 2, 3, 50) != random_gradient(1, 3, 2, 50));
  CHECK(random_mask(1, 2, 200, 0.5) == random_mask(1, 2, 200, 0.5));
  CHECK(random_mask(1, 2, 200, 0.5) != random_mask(1, 3, 200, 0.5));
  CHECK(random_parameters(1, 50) != random_parameters(2, 50));
  // The standard fixes std::mt19937_64, so this is the same on every machine.
  std::mt19937_64 words;
  words.discard(9999);
  CHECK(words() == 9981545732273789042U);
}

TEST_CASE("generate: values have the declared spread") {
  using namespace test_support;
  const auto values = random_gradient(7, 1, 0, 20000, 2.0);
  double sum = 0.0;
  double squares = 0.0;
  for (const float x : values) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  CHECK(std::abs(sum / 20000) < 0.06);
  CHECK(std::sqrt(squares / 20000) == doctest::Approx(2.0).epsilon(0.03));
  const auto mask = random_mask(7, 1, 20000, 0.1);
  CHECK(std::count(mask.begin(), mask.end(), 1) == doctest::Approx(2000).epsilon(0.1));
  CHECK(std::ranges::max(mask) == 1);
  CHECK(std::ranges::count(random_mask(7, 1, 500, 0.0), 1) == 0);
  CHECK(std::ranges::count(random_mask(7, 1, 500, 1.0), 1) == 500);
}

TEST_CASE("generate: shapes include the edge cases") {
  using namespace test_support;
  std::set<std::size_t> sizes;
  for (const auto& shape : random_shapes(1, 300)) {
    sizes.insert(shape.size);
    CHECK(shape.dimensions >= 1);
    CHECK(shape.dimensions <= 4);
  }
  for (const std::size_t size : edge_sizes) CHECK(sizes.count(size) == 1);
  CHECK(total_size(edge_shapes()) == 0 + 1 + 2 + 7 + 15 + 16 + 17 + 63 + 257 + 9000 + 33);
}

TEST_CASE("generate: ulp_distance counts floats, and NaN is at the largest distance") {
  using test_support::ulp_distance;
  const float next = std::nextafter(1.0F, 2.0F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float tiny = std::numeric_limits<float>::denorm_min();
  CHECK(ulp_distance(1.0F, 1.0F) == 0);
  CHECK(ulp_distance(1.0F, next) == 1);
  CHECK(ulp_distance(next, 1.0F) == 1);
  CHECK(ulp_distance(0.0F, -0.0F) == 0);
  CHECK(ulp_distance(tiny, -tiny) == 2);
  CHECK(ulp_distance(1.0F, -1.0F) > 1'000'000'000);
  CHECK_FALSE(ulp_distance(nan, nan) <= 1000);
  CHECK_FALSE(ulp_distance(1.0F, nan) <= 1000);
  const std::vector<float> a{1.0F, 2.0F};
  CHECK(test_support::max_ulp_distance(a, a) == 0);
  CHECK(test_support::max_ulp_distance(a, std::vector<float>{next, 2.0F}) == 1);
  CHECK_THROWS(test_support::max_ulp_distance(a, std::vector<float>{1.0F}));
}

TEST_CASE("generate: same_bits finds differences that == does not") {
  using test_support::same_bits;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(same_bits(std::vector<float>{1.0F, nan}, std::vector<float>{1.0F, nan}));
  CHECK_FALSE(same_bits(std::vector<float>{0.0F}, std::vector<float>{-0.0F}));
  CHECK_FALSE(same_bits(std::vector<float>{1.0F}, std::vector<float>{1.0F, 1.0F}));
  CHECK_FALSE(same_bits(std::vector<float>{1.0F}, std::vector<float>{std::nextafter(1.0F, 2.0F)}));
}

TEST_CASE("generate: max_relative_error finds one wrong element, and NaN at any position") {
  using test_support::max_relative_error;
  using floats = std::vector<float>;
  using doubles = std::vector<double>;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(max_relative_error(floats{1.0F, 4.0F}, doubles{1.0, 4.0}) == 0.0);
  CHECK(max_relative_error(floats{1.0F, 4.0F}, doubles{2.0, 4.0}) == 0.25);
  CHECK(max_relative_error(floats{1.0F, 3.0F}, doubles{1.0, 4.0}) == 0.25);
  CHECK(max_relative_error(floats{nan, 4.0F}, doubles{1.0, 4.0}) == infinity);
  CHECK(max_relative_error(floats{1.0F, nan}, doubles{1.0, 4.0}) == infinity);
  CHECK(max_relative_error(floats{1.0F, 4.0F}, floats{nan, 4.0F}) == infinity);
  CHECK(max_relative_error(floats{0.0F}, doubles{0.0}) == 0.0);
  CHECK(max_relative_error(floats{1.0F}, doubles{0.0}) == infinity);
  CHECK(max_relative_error(floats{}, doubles{}) == 0.0);
  CHECK_THROWS(max_relative_error(floats{1.0F}, doubles{}));
}

}  // namespace support_tests_oracle_tests
