// The suite of Communicators, for all that work within one process.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/communicator/hierarchical_communicator.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "support/archetype_communicators.hpp"
#include "support/conformance.hpp"
#include "support/thread_nodes.hpp"

namespace communicator_communicator_tests {
namespace {

using slamb::communicator_check;
using slamb::thread_communicator;
using test_support::nodes_of_threads;
using test_support::require_conforming;

constexpr std::array ranks_of_threads{1, 2, 3, 4, 7, 8};
constexpr communicator_check small{.large = 3001}, large{.large = 100'003, .from_second_thread = false};

template <class Body>
void on_threads(int ranks, const Body& body) {
  slamb::run_ranks(ranks, body, {.timeout = std::chrono::seconds(60)});
}

/// Runs the suite on nodes of `per_node` ranks each.
void require_conforming_nodes(int nodes, int per_node, const communicator_check& how) {
  test_support::thread_nodes(std::vector<int>(static_cast<std::size_t>(nodes), per_node))
      .run([&how](nodes_of_threads ranks, std::size_t /*rank*/) { require_conforming(ranks, how); });
}

}  // namespace

TEST_CASE("self_communicator: conforms") {
  slamb::self_communicator alone;
  CHECK_NOTHROW(require_conforming(alone, large));
}

TEST_CASE("thread_communicator: conforms for all element types and numbers of ranks") {
  for (const int ranks : ranks_of_threads)
    CHECK_NOTHROW(on_threads(ranks, [](thread_communicator mine) { require_conforming(mine, small); }));
}

TEST_CASE("thread_communicator: conforms for large payloads") {
  for (const int ranks : {1, 2, 3})
    CHECK_NOTHROW(on_threads(ranks, [](thread_communicator mine) { require_conforming(mine, large); }));
  CHECK_NOTHROW(on_threads(8, [](thread_communicator mine) {
    slamb::check_communicator(mine, {.large = 100'003, .from_second_thread = false});
  }));
}

TEST_CASE("any_communicator: conforms over threads") {
  for (const int ranks : ranks_of_threads)
    CHECK_NOTHROW(on_threads(ranks, [](thread_communicator held) {
      slamb::any_communicator<> mine(std::move(held));
      require_conforming(mine, small);
    }));
}

TEST_CASE("counting_communicator: conforms over threads") {
  for (const int ranks : ranks_of_threads)
    CHECK_NOTHROW(on_threads(ranks, [](thread_communicator base) {
      slamb::counting_communicator<thread_communicator> mine(std::move(base));
      require_conforming(mine, small);
    }));
}

TEST_CASE("hierarchical_communicator: conforms, with nodes as ranks") {
  for (const int nodes : {1, 2, 3}) CHECK_NOTHROW(require_conforming_nodes(nodes, 2, small));
  CHECK_NOTHROW(require_conforming_nodes(2, 3, small));
  CHECK_NOTHROW(require_conforming_nodes(3, 1, small));
  CHECK_NOTHROW(require_conforming_nodes(2, 2, large));
}

TEST_CASE("hierarchical_communicator: a counting_communicator does not count sums within a node") {
  using counted = slamb::counting_communicator<test_support::nodes_of_threads>;
  static_assert(slamb::capability::has_all_reduce_in_node<counted>);
  static_assert(!slamb::capability::has_all_reduce_in_node<slamb::counting_communicator<slamb::thread_communicator>>);
  test_support::thread_nodes({2, 2}).run([](test_support::nodes_of_threads nodes, std::size_t rank) {
    counted communicator(std::move(nodes));
    float value = static_cast<float>(rank + 1);
    communicator.all_reduce_in_node(std::span(&value, 1), slamb::host_stream{});
    if (value != (rank < 2 ? 3.0F : 7.0F) || communicator.counts().total().rounds != 0)
      throw std::runtime_error("a sum within a node is wrong, or counted");
    if (communicator.local_rank() != static_cast<int>(rank % 2) || communicator.local_size() != 2)
      throw std::runtime_error("the rank in its node is wrong");
  });
}

TEST_CASE("postal_communicator: conforms with the collectives that it has") {
  static_assert(!slamb::capability::has_all_reduce_sum<test_support::postal_communicator, double>);
  static_assert(!slamb::capability::has_all_gather<test_support::postal_communicator, float>);
  static_assert(slamb::capability::has_broadcast<test_support::postal_communicator, float>);
  for (const int ranks : ranks_of_threads)
    CHECK_NOTHROW(test_support::run_postal_ranks(
        ranks, [](test_support::postal_communicator mine) { require_conforming(mine, small); }));
}

}  // namespace communicator_communicator_tests
