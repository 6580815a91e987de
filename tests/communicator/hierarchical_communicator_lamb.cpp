// LAMB in nodes of several ranks: compared with ranks without nodes; its traffic, the ranks' comparisons, and failures.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <latch>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/replica.hpp"
#include "support/thread_nodes.hpp"

namespace communicator_hierarchical_communicator_lamb_tests {
namespace {

using namespace test_support;
using std::chrono_literals::operator""s;
using flat = slamb::lamb<slamb::thread_communicator>;
using in_nodes = slamb::lamb<nodes_of_threads>;

/// The exceptions of 2 × 2 threads, if `spoil(groups)` causes a failure while they train, or if one rank leaves before step 3.
std::vector<std::string> thrown_by_ranks(
    std::size_t leaves, const std::function<void(thread_nodes&)>& spoil = [](thread_nodes&) {},
    slamb::thread_options in_node = {.timeout = 60s}, slamb::thread_options inter_node = {.timeout = 30s}) {
  constexpr std::size_t world = 4;
  const experiment e = make_experiment({{17}}, 5, world, 6);
  thread_nodes nodes({2, 2}, in_node, inter_node);
  spoil(nodes);
  std::vector<std::string> thrown(world);
  std::latch all_told(world);  // no rank leaves earlier, so ranks learn of the failure by messages
  nodes.run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    in_nodes optimizer(mine.parameters(), {}, std::move(communicator), one_thread());
    try {
      for (std::size_t t = 0; t < e.steps(); ++t) {
        if (rank == leaves && t == 2) {
          all_told.count_down();
          return;
        }
        mine.set_gradient(e.gradients[t][rank]);
        optimizer.step(e.rates[t]);
      }
    } catch (const slamb::communicator_error& failure) {
      thrown[rank] = failure.what();
    }
    all_told.arrive_and_wait();
  });
  return thrown;
}

constexpr std::size_t no_rank = 4;

/// The exceptions of ranks that were constructed with different beta1.
std::vector<std::string> disagreements(const std::vector<int>& sizes, const std::vector<double>& beta1) {
  std::vector<std::string> thrown(beta1.size());
  thread_nodes(sizes).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine({{17}}, std::vector<float>(17, 1.0F));
    try {
      const in_nodes optimizer(mine.parameters(), {.beta1 = beta1[rank]}, std::move(communicator), one_thread());
    } catch (const slamb::rank_mismatch_error& error) {
      thrown[rank] = error.what();
    }
  });
  return thrown;
}

bool all_contain(const std::vector<std::string>& thrown, const std::string& text) {
  return std::all_of(thrown.begin(), thrown.end(),
                     [&](const std::string& what) { return what.find(text) != std::string::npos; });
}

}  // namespace

// Gradients have one sign, so the error of a mean is the roundings that made it, u = 2⁻²⁴ each: one with 4 ranks, two with 2 × 2
// ranks, so the means differ by at most 3u. Then m differs by at most 3u and v by at most 6u. With one or two roundings of each
// operation in ten steps, u_l and φ_l differ by 40u. A step of γ = 0.01 moves a parameter by about γ rms(p); ten steps make 4u
// of max|p|. The roundings of p itself add 10u at most.
TEST_CASE("hierarchical_communicator: LAMB of 2 x 2 ranks is within rounding of LAMB of 4") {
  experiment e = make_experiment(random_model(21, 3), 21, 4, 10);
  use_one_rate(e, 0.01);
  for (auto& ranks : e.gradients)
    for (auto& gradient : ranks)
      for (float& x : gradient) x = 1.0F + x / 16.0F;  // in (0.6, 1.4)
  const trajectory by_nodes = train_in_nodes<in_nodes>(e, 2, {}, one_thread());
  const trajectory by_ranks = train<flat>(e, {});
  const double error = max_relative_error(by_nodes.back()[3], by_ranks.back()[3]);
  CHECK(error > 0.0);
  CHECK(error <= 16.0 * 0x1p-24);
}

TEST_CASE("hierarchical_communicator: one node of all ranks, and nodes of one rank each") {
  const experiment e = make_experiment(random_model(22, 3), 22, 4, 5);
  CHECK(ranks_have_bits_of_nodes(train_in_nodes<in_nodes>(e, 1, {}, one_thread()),
                                 train<flat>(means_of_nodes(e, 1), {})));
  CHECK(same_bits(train_in_nodes<in_nodes>(e, 4, {}, one_thread()), train<flat>(e, {})));
}

TEST_CASE("hierarchical_communicator: kernels of the CUDA backend reduce within nodes") {
  const experiment e = make_experiment(random_model(23, 3), 23, 4, 3);
  using optimizer_type = slamb::lamb<nodes_of_threads, slamb::emulated_backend>;
  const slamb::emulated_backend backend;
  CHECK(ranks_have_bits_of_nodes(train_in_nodes<optimizer_type>(e, 2, {}, backend),
                                 train_in_nodes<optimizer_type>(means_of_nodes(e, 2), 2, {}, backend)));
}

TEST_CASE("hierarchical_communicator: memory and traffic are those of nodes, plus one gradient") {
  const experiment e = make_experiment({{1000}, {24}}, 24, 4, 3);
  const auto report = [&e](auto optimizer) {
    for (std::size_t t = 0; t < e.steps(); ++t) optimizer.step(e.rates[t]);
    return std::pair{optimizer.memory(), optimizer.statistics().traffic.total()};
  };
  std::pair<slamb::memory_report, slamb::traffic> of_flat;
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const bool is_shown = communicator.rank() == 1;
    replica mine(e.tensors, e.start);
    const auto all = report(flat(mine.parameters(), {}, std::move(communicator), one_thread()));
    if (is_shown) of_flat = all;
  });
  for (const int per_node : {1, 2}) {
    std::vector<std::pair<slamb::memory_report, slamb::traffic>> of_ranks(static_cast<std::size_t>(2 * per_node));
    thread_nodes({per_node, per_node}).run([&](nodes_of_threads communicator, std::size_t rank) {
      replica mine(e.tensors, e.start);
      of_ranks[rank] = report(in_nodes(mine.parameters(), {}, std::move(communicator), one_thread()));
    });
    for (const auto& [memory, traffic] : of_ranks) {
      CHECK(traffic.rounds == 3);
      CHECK(traffic.rounds == of_flat.second.rounds);
      CHECK(traffic.sent_bytes == of_flat.second.sent_bytes);
      const auto local = std::find_if(memory.uses.begin(), memory.uses.end(),
                                      [](const auto& use) { return use.purpose == "local gradient"; });
      if (per_node == 1) {
        CHECK(memory.total_bytes == of_flat.first.total_bytes);
        CHECK(local == memory.uses.end());
      } else {
        REQUIRE(local != memory.uses.end());
        CHECK(local->bytes == (16 + 1024) * sizeof(float));
      }
    }
  }
}

TEST_CASE("hierarchical_communicator: set_gradient and set_gradients change the gradients in the node's mean") {
  const experiment e = make_experiment({{40}, {30}}, 25, 4, 3);
  trajectory reached = place_of(e);
  thread_nodes({2, 2}).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    in_nodes optimizer(mine.parameters(), {}, std::move(communicator), one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      if (t == 1) optimizer.set_gradient(1, e.gradients[1][rank].data() + 40);  // the first keeps its address
      if (t == 0) mine.set_gradient(e.gradients[0][rank]);
      if (t == 2) {
        const float* const first = e.gradients[2][rank].data();
        optimizer.set_gradients(std::vector<const float*>{first, first + 40});
      }
      optimizer.step(e.rates[t]);
      reached[t][rank] = mine.values();
    }
  });
  experiment expected = means_of_nodes(e, 2);
  for (std::size_t node = 0; node < 2; ++node)
    std::copy_n(expected.gradients[0][node].begin(), 40, expected.gradients[1][node].begin());
  CHECK(ranks_have_bits_of_nodes(reached, train<flat>(expected, {})));
}

TEST_CASE("hierarchical_communicator: a step in parts averages the gradients that are present when it is finished") {
  const experiment e = make_experiment({{40}, {30}, {20}}, 27, 4, 3);
  trajectory reached = place_of(e);
  thread_nodes({2, 2}).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    in_nodes optimizer(mine.parameters(), {.ranks = {.bucket_bytes = 64}}, std::move(communicator), one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      optimizer.begin_step(e.rates[t]);
      mine.set_gradient(e.gradients[t][rank]);
      if (rank != 1) optimizer.gradient_ready(1, 2);
      optimizer.finish_step();
      reached[t][rank] = mine.values();
    }
  });
  CHECK(ranks_have_bits_of_nodes(reached, train<flat>(means_of_nodes(e, 2), {})));
}

TEST_CASE("hierarchical_communicator: an invalid rate on one rank of a node is rejected by all") {
  const experiment e = make_experiment({{40}}, 26, 4, 1);
  std::vector<std::vector<float>> reached(4);
  std::array<std::uint64_t, 4> skipped{};
  thread_nodes({2, 2}).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    in_nodes optimizer(mine.parameters(), {}, std::move(communicator), one_thread());
    mine.set_gradient(e.gradients[0][rank]);
    const double rate = rank == 1 ? -1.0 : 0.01;
    optimizer.step(slamb::device_learning_rates{&rate});
    reached[rank] = mine.values();
    skipped[rank] = optimizer.statistics().skipped_steps;
  });
  CHECK(skipped == std::array<std::uint64_t, 4>{1, 1, 1, 1});
  for (const auto& parameters : reached) CHECK(same_bits(std::span(parameters), std::span(e.start)));
}

TEST_CASE("hierarchical_communicator: options that differ within a node or between nodes are rejected by all ranks") {
  CHECK(all_contain(disagreements({2, 2}, {0.9, 0.9, 0.9, 0.8}), "beta1: 0.9 on rank 0, 0.8 on rank 3"));
  CHECK(all_contain(disagreements({2, 2}, {0.9, 0.8, 0.9, 0.9}), "beta1: 0.9 on rank 0, 0.8 on rank 1"));
  CHECK(all_contain(disagreements({2, 2}, {0.9, 0.9, 0.8, 0.8}), "beta1: 0.9 on rank 0, 0.8 on rank 2"));
  CHECK(all_contain(disagreements({3}, {0.9, 0.9, 0.8}), "beta1: 0.9 on rank 0, 0.8 on rank 2"));
  CHECK(disagreements({2, 2}, {0.9, 0.9, 0.9, 0.9}) == std::vector<std::string>(4));
}

TEST_CASE("hierarchical_communicator: nodes of different sizes are rejected by all ranks") {
  for (const std::vector<int>& sizes : {std::vector{2, 3}, {1, 2}, {4, 3, 2}, {1, 17}}) {
    std::size_t ranks = 0;
    for (const int size : sizes) ranks += static_cast<std::size_t>(size);
    const std::vector<std::string> thrown = disagreements(sizes, std::vector<double>(ranks, 0.9));
    CHECK(all_contain(thrown, "nodes must have equal numbers of ranks"));
    CHECK(thrown.back().find("; rank " + std::to_string(sizes.back() - 1) + " of " + std::to_string(sizes.back()) +
                             " reports node ") != std::string::npos);
  }
}

TEST_CASE("hierarchical_communicator: different node numbers within a node are rejected by all ranks") {
  slamb::thread_group first(2);
  slamb::thread_group second(2);
  slamb::thread_group leaders(2);
  slamb::thread_group others(2);
  std::vector<std::string> thrown(4);
  slamb::run_ranks(4, [&](const slamb::thread_communicator& thread) {
    const int node = thread.rank() / 2;
    const int local = thread.rank() % 2;
    nodes_of_threads communicator((node == 0 ? first : second).communicator(local),
                                  local == 0 ? leaders.communicator(node) : others.communicator(1 - node));
    replica mine({{17}}, std::vector<float>(17, 1.0F));
    try {
      const in_nodes optimizer(mine.parameters(), {}, std::move(communicator), one_thread());
    } catch (const slamb::rank_mismatch_error& error) {
      thrown[static_cast<std::size_t>(thread.rank())] = error.what();
    }
  });
  CHECK(all_contain(thrown, "all ranks of a node must report the same node id; rank "));
}

TEST_CASE("hierarchical_communicator: when a rank leaves, leader or not, all others throw") {
  CHECK(thrown_by_ranks(no_rank) == std::vector<std::string>(4));
  for (std::size_t leaves = 0; leaves < 4; ++leaves) {
    std::vector<std::string> thrown = thrown_by_ranks(leaves);
    CHECK(thrown[leaves].empty());
    thrown.erase(thrown.begin() + static_cast<std::ptrdiff_t>(leaves));
    CHECK(all_contain(thrown, "left before the collective of the others"));
  }
}

TEST_CASE("hierarchical_communicator: when an exchange between nodes fails, all ranks throw") {
  const auto leader = [](slamb::thread_group::fault::kind_type kind) {
    return [kind](thread_nodes& nodes) { nodes.between(0).inject({.rank = 1, .round = 7, .kind = kind}); };
  };
  const std::vector<std::string> thrown =
      thrown_by_ranks(no_rank, leader(slamb::thread_group::fault::kind_type::throws));
  CHECK(all_contain(thrown, "rank 1 threw, by an injected fault, in all_reduce_sum"));
  for (const std::size_t rank : {1U, 3U})
    CHECK(thrown[rank].find("rank 0 was aborted: between nodes: ") != std::string::npos);
  CHECK(all_contain(thrown_by_ranks(no_rank, leader(slamb::thread_group::fault::kind_type::stalls), {.timeout = 60s},
                                    {.timeout = 3s}),
                    "after 3000 ms rank 1 had not arrived"));
}

TEST_CASE("hierarchical_communicator: when a sum within a node fails, all ranks of all nodes throw") {
  const auto other = [](slamb::thread_group::fault::kind_type kind) {
    return [kind](thread_nodes& nodes) { nodes.node(1).inject({.rank = 1, .round = 15, .kind = kind}); };
  };
  const std::vector<std::string> thrown =
      thrown_by_ranks(no_rank, other(slamb::thread_group::fault::kind_type::throws));
  CHECK(all_contain(thrown, "rank 1 threw, by an injected fault, in "));
  for (const std::size_t rank : {0U, 1U}) CHECK(thrown[rank].find("aborted: in node 1: ") != std::string::npos);
  // Ranks of the other node wait for their leader equally long, so either may give up first.
  CHECK(all_contain(thrown_by_ranks(no_rank, other(slamb::thread_group::fault::kind_type::stalls), {.timeout = 3s}),
                    "after 3000 ms rank "));
}

}  // namespace communicator_hierarchical_communicator_lamb_tests
