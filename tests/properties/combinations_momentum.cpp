// SLAMB with every way of exchanging the momentum: all find the minimum of a loss of which each rank sees another part.
#include <doctest/doctest.h>

#include <string>

#include "support/convergence.hpp"

namespace properties_combinations_momentum_tests {
namespace {

using test_support::missed;
using test_support::reached;

// Averagings are frequent, because ranks with their own variances drift apart between them.
template <class Compressor>
double left_of_slamb(const Compressor& c) {
  return test_support::left_after<slamb::slamb<slamb::thread_communicator, Compressor>>(
      {.beta2 = 0.99, .weight_decay = 0.0, .local_steps = 20, .dense_below = 20, .compressor = c}, 0.03);
}

constexpr auto reaches_the_minimum = [](const std::string& name, const auto& compressor) {
  CAPTURE(name);
  CHECK(left_of_slamb(compressor) < reached);
};

}  // namespace

TEST_CASE("combinations: SLAMB reaches the minimum with every sparsifier") {
  reaches_the_minimum("all", slamb::no_compressor{});
  reaches_the_minimum("random_k", slamb::random_k<>{.k = 0.25});
  reaches_the_minimum("bernoulli", slamb::random_k<slamb::sampling::bernoulli>{.k = 0.25});
  reaches_the_minimum("top_k", slamb::top_k{.k = 0.25});
  reaches_the_minimum("a user's", test_support::every_nth{.n = 4});
}

// Their quantizers are unbiased: the compression error of the mean is not kept.
TEST_CASE("combinations: SLAMB reaches the minimum with chains") {
  using slamb::chain;
  using random = slamb::random_k<>;
  reaches_the_minimum("random_k, int8", chain<random, slamb::int8>{.sparsifier = {.k = 0.25}});
  reaches_the_minimum("random_k, int4", chain<random, slamb::int4>{.sparsifier = {.k = 0.25}});
  reaches_the_minimum("random_k, natural", chain<random, slamb::natural>{.sparsifier = {.k = 0.25}});
  reaches_the_minimum("top_k, int8", chain<slamb::top_k, slamb::int8>{.sparsifier = {.k = 0.25}});
  reaches_the_minimum("a user's, a user's",
                      chain<test_support::every_nth, test_support::archetype_levels>{.sparsifier = {.n = 4}});
}

TEST_CASE("combinations: SLAMB misses the minimum if nothing is ever sent") {
  CHECK(left_of_slamb(test_support::nothing_ever{}) > missed);
}

}  // namespace properties_combinations_momentum_tests
