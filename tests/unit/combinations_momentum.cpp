// SLAMB with the momentum exchanged in every way there is: all find the minimum of a loss of which each rank sees another
// part.
#include <doctest/doctest.h>

#include <string>

#include "support/convergence.hpp"

namespace {

using test_support::missed;
using test_support::reached;

// Averagings are so frequent because ranks with variances of their own drift apart between them, the more so the longer.
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
  test_support::for_each_sparsifier(reaches_the_minimum);
}

TEST_CASE("combinations: SLAMB reaches the minimum with chains") { test_support::for_each_chain(reaches_the_minimum); }

TEST_CASE("combinations: SLAMB misses the minimum if nothing is ever sent") {
  CHECK(left_of_slamb(test_support::nothing_ever{}) > missed);
}
