// The forms of SLAMB's trust ratio beyond the paper's: the ratio of the ranks' mean step, and the cap, compared with the oracle.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace trust_ratio_rescaled_trust_ratio_tests {
namespace {

using slamb::thread_communicator;
using test_support::experiment;

constexpr double tolerance = 2e-6;

/// Three tensors, one of them of one dimension.
test_support::model some_model() { return {{.size = 700}, {.size = 100}, {.size = 60, .dimensions = 1}}; }

template <slamb::rescaling Form, class Compressor>
void check_cap(const Compressor& compressor) {
  using slamb::rescaled_trust_ratio;
  using capped = slamb::slamb<thread_communicator, Compressor, rescaled_trust_ratio<Form, true>>;
  using free = slamb::slamb<thread_communicator, Compressor, rescaled_trust_ratio<Form>>;
  for (const int world : {1, 2, 3, 8}) {
    const auto seed = static_cast<std::uint64_t>(world) + 60;
    const experiment e = test_support::make_experiment(test_support::random_model(seed, 6), seed, world, 9);
    // With lower = 0 the clamp of the product form changes nothing, and the cap is exact.
    const typename capped::options_type options{
        .local_steps = 4, .dense_below = 16, .compressor = compressor, .trust_ratio = {.lower = 0.0}};
    CHECK(test_support::error_of_slamb<capped>(e, options) <= tolerance);
    // The cap acts: without it the parameters are others.
    const typename free::options_type same{
        .local_steps = 4, .dense_below = 16, .compressor = compressor, .trust_ratio = {.lower = 0.0}};
    experiment its = e;
    test_support::take_masks(its, compressor);
    CHECK(test_support::worst_error(its, test_support::train<free>(its, same),
                                    test_support::slamb_oracle(its, options)) > 10.0 * tolerance);
  }
}

}  // namespace

TEST_CASE("the ratio of the mean step follows the oracle") {
  using together =
      slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>>;
  for (const int world : {1, 2, 3, 8}) {
    const auto seed = static_cast<std::uint64_t>(world) + 40;
    const experiment e = test_support::make_experiment(test_support::random_model(seed, 6), seed, world, 7);
    for (const std::uint64_t dense_below : {16U, 9000U}) {
      const typename together::options_type options{
          .local_steps = 1, .dense_below = dense_below, .compressor = {.k = 0.25, .seed = seed}};
      CHECK(test_support::error_of_slamb<together>(e, options) <= tolerance);
    }
    const typename together::options_type clamped{
        .local_steps = 3, .compressor = {.k = 0.1}, .trust_ratio = {.lower = 0.5, .upper = 1.5}};
    CHECK(test_support::error_of_slamb<together>(e, clamped) <= tolerance);
  }
}

TEST_CASE("the ratio of the mean step: one rank takes LAMB's steps, whatever it selects") {
  using together =
      slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>>;
  const experiment e = test_support::make_experiment(some_model(), 9, 1, 10);
  const auto of_lamb = test_support::train<slamb::lamb<thread_communicator>>(e, {});
  const auto reached = test_support::train<together>(e, {.dense_below = 10, .compressor = {.k = 0.25}});
  for (std::size_t t = 0; t < e.steps(); ++t)
    CHECK(test_support::max_relative_error(reached[t][0], test_support::widened(of_lamb[t][0])) <= 1e-6);
}

TEST_CASE("the cap: both forms follow the oracle, also with ages that are stored") {
  check_cap<slamb::rescaling::product>(slamb::random_k<>{.k = 0.25});
  check_cap<slamb::rescaling::blend>(slamb::random_k<slamb::sampling::bernoulli>{.k = 0.25});
}

TEST_CASE("the cap: no step of a tensor is longer than LAMB's, also where the clamp acts and where all is exchanged") {
  const auto check = []<slamb::rescaling Form>(double lower, double upper, double weight_decay,
                                               std::uint64_t dense_below) {
    using capped = slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<Form, true>>;
    constexpr std::size_t n = 400;
    slamb::run_ranks(2, [&](thread_communicator ranks) {
      test_support::random_source source(4, static_cast<std::uint64_t>(ranks.rank()));
      std::vector<float> p(n), g(n);
      for (std::size_t j = 0; j < n; ++j) p[j] = 0.1F + 0.001F * static_cast<float>(j);
      const std::vector<slamb::parameter> parameters{{.data = p.data(), .gradient = g.data(), .size = n}};
      capped its({parameters},
                 {.weight_decay = weight_decay,
                  .local_steps = 0,
                  .dense_below = dense_below,
                  .compressor = {.k = 0.1},
                  .trust_ratio = {lower, upper}},
                 std::move(ranks));
      for (int t = 0; t < 30; ++t) {
        for (float& x : g) x = static_cast<float>(source.bell());
        const std::vector<float> before = p;
        its.step(0.1);
        double of_step = 0.0, of_parameters = 0.0;
        for (std::size_t j = 0; j < n; ++j) {
          of_step += std::pow(static_cast<double>(p[j]) - static_cast<double>(before[j]), 2.0);
          of_parameters += std::pow(static_cast<double>(before[j]), 2.0);
        }
        CHECK(std::sqrt(of_step) <= 0.1 * std::sqrt(of_parameters) * (1.0 + 1e-5));
      }
    });
  };
  for (const std::uint64_t dense_below : {10U, 9000U})
    for (const double weight_decay : {0.01, 5.0})
      for (const double lower : {0.01, 0.5, 2.0})
        for (const double upper : {2.0, 1000.0}) {
          check.operator()<slamb::rescaling::product>(lower, upper, weight_decay, dense_below);
          check.operator()<slamb::rescaling::blend>(lower, upper, weight_decay, dense_below);
        }
}

}  // namespace trust_ratio_rescaled_trust_ratio_tests
