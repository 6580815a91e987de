// The network model: times worked out by hand, and break-even bandwidths compared with a scan of all bandwidths.
#include "slamb/plan/network.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "support/generate.hpp"

namespace plan_network_tests {
namespace {

using slamb::collective;
using slamb::traffic;
using slamb::traffic_counts;
using slamb::plan::break_even;
using slamb::plan::network;
using slamb::plan::network_load;
using slamb::plan::training_cost;
using test_support::random_source;

constexpr network four_a_node{.latency = 1e-5, .bandwidth = 1e9, .ranks_per_node = 4, .node_bandwidth = 1e11};

traffic_counts one(collective kind, std::uint64_t bytes, int ranks) {
  traffic_counts counts;
  counts[kind] = traffic{1, bytes, bytes, slamb::traffic::bytes_sent_by(kind, bytes, ranks)};
  return counts;
}

double seconds(collective kind, std::uint64_t bytes, int ranks, const network& net) {
  return network_load::of(one(kind, bytes, ranks), net, ranks).seconds(net);
}

double total(const training_cost& cost, const network& net, double bandwidth) {
  return cost.seconds + cost.load.seconds(net, bandwidth);
}

/// True if `answer` is right at every bandwidth of a fine scan, except within rounding of a tie.
bool holds_everywhere(const break_even& answer, const training_cost& plan, const training_cost& other,
                      const network& net) {
  for (double bandwidth = 1e3; bandwidth < 1e15; bandwidth *= 1.01) {
    const double a = total(plan, net, bandwidth), b = total(other, net, bandwidth);
    if (std::abs(a - b) <= 1e-9 * (a + b)) continue;
    const bool expected = answer.beats == break_even::always ||
                          (answer.beats == break_even::below && bandwidth < answer.bandwidth) ||
                          (answer.beats == break_even::above && bandwidth > answer.bandwidth);
    if (expected != (a < b)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("network: a ring among nodes, and an all_to_all whose messages share the node's link") {
  constexpr std::uint64_t bytes = 16'000'000;
  CHECK(seconds(collective::all_reduce, bytes, 16, four_a_node) == doctest::Approx(6e-5 + 2 * 15e6 / 1e9));
  CHECK(seconds(collective::all_gather, bytes, 16, four_a_node) == doctest::Approx(3e-5 + 15e6 / 1e9));
  CHECK(seconds(collective::broadcast, bytes, 16, four_a_node) == doctest::Approx(3e-5 + 15e6 / 1e9));
  CHECK(seconds(collective::all_to_all, bytes, 16, four_a_node) == doctest::Approx(3e-5 + 4 * 12e6 / 1e9));
  network alone = four_a_node;
  alone.ranks_per_node = 1;
  CHECK(seconds(collective::all_to_all, bytes, 16, alone) == doctest::Approx(15e-5 + 15e6 / 1e9));
}

TEST_CASE("network: on one node the link does not matter, and a single rank takes no time") {
  network slow = four_a_node;
  slow.bandwidth = 1.0;
  CHECK(seconds(collective::all_reduce, 4'000'000, 4, slow) == doctest::Approx(6e-5 + 6e6 / 1e11));
  CHECK(seconds(collective::all_to_all, 4'000'000, 4, slow) == doctest::Approx(3e-5 + 3e6 / 1e11));
  CHECK(seconds(collective::all_reduce, 4'000'000, 1, slow) == 0.0);
  CHECK(seconds(collective::all_to_all, 4'000'000, 1, slow) == 0.0);
}

TEST_CASE("network: a ring is no faster than the inside of a node") {
  network fast = four_a_node;
  fast.bandwidth = 1e13;
  CHECK(seconds(collective::all_gather, 16'000'000, 16, fast) == doctest::Approx(3e-5 + 15e6 / 1e11));
  CHECK(seconds(collective::all_to_all, 16'000'000, 16, fast) == doctest::Approx(3e-5 + 3e6 / 1e11));
}

TEST_CASE("network: impossible values are rejected") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK_NOTHROW(network{}.validate());
  CHECK_THROWS_AS((network{.latency = -1.0}.validate()), std::invalid_argument);
  CHECK_THROWS_AS((network{.latency = infinity}.validate()), std::invalid_argument);
  CHECK_THROWS_AS((network{.bandwidth = 0.0}.validate()), std::invalid_argument);
  CHECK_THROWS_AS((network{.bandwidth = std::nan("")}.validate()), std::invalid_argument);
  CHECK_THROWS_AS((network{.ranks_per_node = 0}.validate()), std::invalid_argument);
  CHECK_THROWS_AS((network{.node_bandwidth = infinity}.validate()), std::invalid_argument);
}

TEST_CASE("break_even: equals a solution by hand") {
  // 1 s slower without the exchange, 9 GB less on the wire: faster below 9 GB/s.
  const training_cost sparse{3.0,
                             network_load::of(one(collective::all_gather, 16'000'000'000 / 15, 16), four_a_node, 16)};
  const training_cost dense{2.0,
                            network_load::of(one(collective::all_gather, 160'000'000'000 / 15, 16), four_a_node, 16)};
  const break_even below = slamb::plan::find_break_even(sparse, dense, four_a_node);
  CHECK(below.beats == break_even::below);
  CHECK(below.bandwidth == doctest::Approx(9e9));
  const break_even above = slamb::plan::find_break_even(dense, sparse, four_a_node);
  CHECK(above.beats == break_even::above);
  CHECK(above.bandwidth == doctest::Approx(9e9));
  CHECK(slamb::plan::find_break_even(dense, dense, four_a_node).beats == break_even::never);
  const training_cost cheap{1.0, sparse.load};
  CHECK(slamb::plan::find_break_even(cheap, dense, four_a_node).beats == break_even::always);
  CHECK(slamb::plan::find_break_even(dense, cheap, four_a_node).beats == break_even::never);
}

TEST_CASE("break_even: is right at every bandwidth, for any two plans") {
  random_source source(402);
  int seen[4] = {};
  for (int i = 0; i < 400; ++i) {
    network net = four_a_node;
    net.ranks_per_node = 1 + static_cast<int>(source.below(9));
    net.node_bandwidth = std::pow(10.0, 7.0 + 4.0 * source.uniform());
    const int ranks = 2 + static_cast<int>(source.below(40));
    const auto cost = [&] {
      traffic_counts counts;
      for (const collective kind : {collective::all_reduce, collective::all_to_all, collective::all_gather})
        if (source.below(2) == 0) counts[kind] = one(kind, source.below(1'000'000'000), ranks)[kind];
      return training_cost{std::pow(10.0, -3.0 + 4.0 * source.uniform()), network_load::of(counts, net, ranks)};
    };
    const training_cost a = cost(), b = cost();
    const break_even answer = slamb::plan::find_break_even(a, b, net);
    ++seen[answer.beats];
    CHECK(holds_everywhere(answer, a, b, net));
    if (answer.bandwidth > 0.0) {
      const double tie = total(a, net, answer.bandwidth) - total(b, net, answer.bandwidth);
      CHECK(std::abs(tie) < 1e-9 * total(a, net, answer.bandwidth));
      break_even wrong = answer;
      wrong.bandwidth *= 1.5;
      CHECK_FALSE(holds_everywhere(wrong, a, b, net));
    }
  }
  for (const int count : seen) CHECK(count > 10);
}

}  // namespace plan_network_tests
