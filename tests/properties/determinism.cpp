// Equal bits from run to run, with every number of threads and size of cache.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace properties_determinism_tests {
namespace {

using slamb::thread_communicator;
using test_support::experiment;
using test_support::same_bits;
using test_support::train;
using test_support::trajectory;

/// Large enough for five threads, with tensors of many tiles, of one and of none.
experiment large_experiment(int world) {
  return test_support::make_experiment({{150'001}, {9000}, {17, 1}, {0}, {180'000, 3}, {8193}, {40'000, 1}}, 90, world,
                                       3);
}

template <class Optimizer>
void check_threads(const experiment& e, const typename Optimizer::options_type& options) {
  const trajectory expected = train<Optimizer>(e, options, {.threads = 1});
  CHECK(same_bits(train<Optimizer>(e, options, {.threads = 1}), expected));
  for (const unsigned threads : {2U, 3U, 5U}) {
    CAPTURE(threads);
    CHECK(same_bits(train<Optimizer>(e, options, {.threads = threads}), expected));
  }
  for (const std::size_t cache_bytes : {std::size_t{0}, std::size_t{1} << 20U, std::size_t{1} << 40U}) {
    CAPTURE(cache_bytes);
    CHECK(same_bits(train<Optimizer>(e, options, {.threads = 2, .cache_bytes = cache_bytes}), expected));
  }
}

}  // namespace

TEST_CASE("determinism: LAMB and AdamW have the same bits for every number of threads and cache size") {
  const experiment e = large_experiment(2);
  check_threads<slamb::lamb<thread_communicator>>(e, {.max_gradient_norm = 1.0});
  check_threads<slamb::adamw<thread_communicator>>(e, {});
}

TEST_CASE("determinism: SLAMB has the same bits for every number of threads, compressor and form") {
  const experiment e = large_experiment(2);
  using slamb::rescaling;
  using blend = slamb::rescaled_trust_ratio<rescaling::blend>;
  using bernoulli = slamb::random_k<slamb::sampling::bernoulli>;
  check_threads<slamb::slamb<thread_communicator>>(e, {.local_steps = 2});
  check_threads<slamb::slamb<thread_communicator, slamb::random_k<>, blend>>(e, {.compressor = {.block = 16}});
  check_threads<slamb::slamb<thread_communicator, bernoulli>>(e, {.compressor = {.block = 5}});
  check_threads<slamb::slamb<thread_communicator, slamb::explicit_mask>>(e, {});
}

TEST_CASE("determinism: the addresses of tensors do not matter") {
  const experiment e = test_support::make_experiment(test_support::random_model(91, 8), 91, 1, 3);
  const trajectory expected = train<slamb::slamb<thread_communicator>>(e, {});
  std::vector<float> data = e.start;
  std::vector<float> gradient(data.size());
  std::vector<slamb::parameter> parameters;
  std::size_t first = 0;
  for (const auto& l : e.tensors) {
    parameters.push_back({data.data() + first, gradient.data() + first, l.size, l.dimensions, l.options});
    first += l.size;
  }
  slamb::slamb<> run(parameters);
  for (std::size_t t = 0; t < e.steps(); ++t) {
    gradient.assign(e.gradients[t][0].begin(), e.gradients[t][0].end());
    run.step(e.rates[t]);
    CHECK(test_support::same_bits(data, expected[t][0]));
  }
}

TEST_CASE("determinism: another seed gives other bits") {
  const experiment e = test_support::make_experiment({{20'000}}, 92, 2, 3);
  using sparse = slamb::slamb<thread_communicator>;
  CHECK_FALSE(same_bits(train<sparse>(e, {.compressor = {.seed = 1}}), train<sparse>(e, {.compressor = {.seed = 2}})));
}

TEST_CASE("determinism: a moved optimizer continues") {
  const experiment e = test_support::make_experiment(test_support::random_model(93, 5), 93, 1, 4);
  const trajectory expected = train<slamb::slamb<thread_communicator>>(e, {});
  test_support::replica mine(e.tensors, e.start);
  slamb::slamb<> first(mine.parameters());
  std::vector<slamb::slamb<>> runs;
  runs.push_back(std::move(first));
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][0]);
    runs.back().step(e.rates[t]);
    slamb::slamb<> next(std::move(runs.back()));
    runs.pop_back();
    runs.push_back(std::move(next));
    CHECK(test_support::same_bits(mine.values(), expected[t][0]));
  }
}

}  // namespace properties_determinism_tests
