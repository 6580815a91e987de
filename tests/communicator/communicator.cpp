// The suite of Communicators, for all that work within one process.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/counting_communicator.hpp"
#include "slamb/communicator/hierarchical_communicator.hpp"
#include "slamb/communicator/run_ranks.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "support/archetype_communicators.hpp"
#include "support/communicator_suite.hpp"
#include "support/thread_nodes.hpp"

namespace communicator_communicator_tests {
namespace {

using namespace test_support::communicator_suite;

constexpr std::array ranks_of_threads{1, 2, 3, 4, 7, 8};

struct self_world {
  using communicator_type = slamb::self_communicator;
  template <class F>
  void run(int /*ranks*/, F body) const {
    body(slamb::self_communicator{});
  }
};

struct thread_world {
  using communicator_type = slamb::thread_communicator;
  template <class F>
  void run(int ranks, F body) const {
    slamb::run_ranks(ranks, body, {.timeout = std::chrono::seconds(60)});
  }
};

struct counting_world {
  using communicator_type = slamb::counting_communicator<slamb::thread_communicator>;
  template <class F>
  void run(int ranks, F body) const {
    thread_world{}.run(ranks, [&](slamb::thread_communicator base) { body(communicator_type(std::move(base))); });
  }
};

/// Ranks are nodes of `per_node` ranks each.
struct world_of_nodes {
  using communicator_type = test_support::nodes_of_threads;
  int per_node;
  template <class F>
  void run(int ranks, F body) const {
    test_support::thread_nodes nodes(std::vector<int>(static_cast<std::size_t>(ranks), per_node));
    nodes.run([&](communicator_type communicator, std::size_t /*rank*/) { body(std::move(communicator)); });
  }
};

struct postal_world {
  using communicator_type = test_support::postal_communicator;
  template <class F>
  void run(int ranks, F body) const {
    test_support::run_postal_ranks(ranks, body);
  }
};

struct faulty_world {
  using communicator_type = slamb::thread_communicator;
  slamb::thread_group::fault planned;
  template <class F>
  void run(int ranks, F body) const {
    slamb::thread_group group(ranks);
    group.inject(planned);
    slamb::run_ranks(group, body);
  }
};

}  // namespace

TEST_CASE("self_communicator: conforms") {
  check_all_types(self_world{}, 1);
  check_size<float>(self_world{}, 1, large);
}

TEST_CASE("thread_communicator: conforms for all element types and numbers of ranks") {
  for (const int ranks : ranks_of_threads) check_all_types(thread_world{}, ranks);
}

TEST_CASE("thread_communicator: conforms for large payloads") {
  check_size<float>(thread_world{}, 1, large);
  check_size<float>(thread_world{}, 3, large);
  check_size<std::uint8_t>(thread_world{}, 8, large);
  check_size<std::uint64_t>(thread_world{}, 2, large);
  for (const int ranks : ranks_of_threads) {
    const auto result = all_reduce<float>(thread_world{}, ranks, large);
    CHECK(disagreement(result) == "");
    CHECK(wrong_sums(result, large) == "");
  }
}

TEST_CASE("counting_communicator: conforms over each base") {
  for (const int ranks : ranks_of_threads) check_all_types(counting_world{}, ranks);
  check_size<float>(counting_world{}, 2, large);
}

TEST_CASE("hierarchical_communicator: conforms, with nodes as ranks") {
  for (const int nodes : {1, 2, 3}) check_small_sizes<float>(world_of_nodes{2}, nodes);
  check_all_types(world_of_nodes{3}, 2);
  check_small_sizes<std::uint8_t>(world_of_nodes{1}, 3);
  check_size<float>(world_of_nodes{2}, 2, large);
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
  for (const int ranks : ranks_of_threads) check_small_sizes<float>(postal_world{}, ranks);
  check_size<float>(postal_world{}, 3, large);
}

TEST_CASE("communicator suite: its checks find a value that is wrong on all ranks") {
  const faulty_world world{{.rank = 1, .round = 0, .kind = slamb::thread_group::fault::kind_type::corrupts}};
  for (const std::size_t n : {1U, 1000U}) {
    const auto sums = all_reduce<float>(world, 3, n);
    CHECK(disagreement(sums) == "");
    CHECK(wrong_sums(sums, n) == "rank 0, element 0: wrong sum " + std::to_string(sums[0].values()[0]));
    CHECK(std::isnan(sums[2].values()[0]));
    CHECK(wrong_broadcast(broadcast<double>(world, 3, n, 1), n, 1) == "rank 0, element 0: wrong value");
    CHECK(wrong_gather(all_gather<std::int32_t>(world, 3, n), n) == at(0, n) + ": wrong value");
    CHECK(wrong_exchange(all_to_all<std::uint8_t>(world, 3, n), n) == at(0, n) + ": wrong value");
  }
}

TEST_CASE("communicator suite: its checks find ranks that disagree") {
  const faulty_world world{{.rank = 2, .round = 0, .kind = slamb::thread_group::fault::kind_type::corrupts_result}};
  for (const std::size_t n : {1U, 1000U}) {
    CHECK(disagreement(all_reduce<float>(world, 4, n)) == "rank 2, element 0: other bits than rank 0");
    CHECK(wrong_sums(all_reduce<std::uint64_t>(world, 4, n), n) == "rank 2, element 0: wrong sum");
    CHECK(disagreement(broadcast<float>(world, 4, n, 0)) == "rank 2, element 0: other bits than rank 0");
    CHECK(disagreement(all_gather<double>(world, 4, n)) == "rank 2, element 0: other bits than rank 0");
    CHECK(wrong_exchange(all_to_all<float>(world, 4, n), n) == "rank 2, element 0: wrong value");
  }
}

TEST_CASE("communicator suite: its checks find writes outside a buffer") {
  outcome<float> result(2, buffer<float>(5));
  CHECK(overrun(result) == "");
  float* const past = result[1].span().data() + 5;
  *past = 1.0F;
  CHECK(overrun(result) == "rank 1, element 0: margin written");
}

}  // namespace communicator_communicator_tests
