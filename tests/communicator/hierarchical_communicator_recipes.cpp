// Every recipe in nodes of several ranks: bit for bit the result of the nodes as ranks, given the mean gradients of the nodes.
#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/replica.hpp"
#include "support/thread_nodes.hpp"

namespace communicator_hierarchical_communicator_recipes_tests {
namespace {

using namespace test_support;
using threads = slamb::thread_communicator;

constexpr std::size_t steps = 15;
constexpr std::size_t overflows[] = {3, 9};  // steps at which exactly one rank has a gradient that is not finite

experiment with_overflows(int world, std::size_t rank) {
  experiment e = make_experiment(random_model(11, 3), 11, world, steps);
  for (const std::size_t t : overflows)
    e.gradients[t][rank][total_size(e.tensors) / 2] = std::numeric_limits<float>::infinity();
  return e;
}

/// @param skipped  true: a step with an overflow changes no rank's parameters
template <class OfNodes, class Flat>
void check_bits(const typename Flat::options_type& options, bool skipped) {
  for (const int per_node : {2, 3}) {
    CAPTURE(per_node);
    const int world = 2 * per_node;
    const experiment e = with_overflows(world, per_node == 2 ? 3 : 0);  // on the last rank, and on the first
    const trajectory reached = train_in_nodes<OfNodes>(e, 2, options, one_thread());
    CHECK(ranks_have_bits_of_nodes(reached, train<Flat>(means_of_nodes(e, 2), options)));
    CHECK_FALSE(same_bits(std::span(reached[0][0]), std::span(reached.back()[0])));
    if (!skipped) continue;
    for (const std::size_t t : overflows)
      for (std::size_t i = 0; i < reached[t].size(); ++i)
        CHECK(same_bits(std::span(reached[t][i]), std::span(reached[t - 1][i])));
  }
}

}  // namespace

TEST_CASE("hierarchical_communicator: LAMB has the bits of ranks with the nodes' mean gradients") {
  check_bits<slamb::lamb<nodes_of_threads>, slamb::lamb<threads>>({.max_gradient_norm = 1.0}, true);
}

TEST_CASE("hierarchical_communicator: SLAMB has the bits of ranks with the nodes' mean gradients") {
  check_bits<slamb::slamb<nodes_of_threads>, slamb::slamb<threads>>({.local_steps = 4, .dense_below = 100}, true);
}

TEST_CASE("hierarchical_communicator: 1-bit LAMB has the bits of ranks with the nodes' mean gradients") {
  check_bits<slamb::one_bit_lamb<nodes_of_threads>, slamb::one_bit_lamb<threads>>({.warm_up = {6}}, true);
}

TEST_CASE(
    "hierarchical_communicator: 0/1 Adam has the bits of ranks with the nodes' mean gradients, also in local steps") {
  check_bits<slamb::zero_one_adam<nodes_of_threads>, slamb::zero_one_adam<threads>>(
      {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}},
      false);
}

TEST_CASE("hierarchical_communicator: a state saved by one rank of a node resumes on another") {
  using optimizer_type = slamb::one_bit_lamb<nodes_of_threads>;
  const experiment e = make_experiment(random_model(12, 2), 12, 4, 8);
  const optimizer_type::options_type options{.warm_up = {3}};
  const trajectory whole = train_in_nodes<optimizer_type>(e, 2, options, one_thread());

  std::vector<std::vector<std::byte>> saved(4);
  const auto take = [&](optimizer_type& optimizer, replica& mine, std::size_t rank, std::size_t first,
                        std::size_t last) {
    for (std::size_t t = first; t < last; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(e.rates[t]);
    }
  };
  thread_nodes({2, 2}).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    optimizer_type optimizer(mine.parameters(), options, std::move(communicator), one_thread());
    take(optimizer, mine, rank, 0, 5);
    saved[rank] = optimizer.save_state();
  });
  CHECK(saved[0] == saved[1]);
  CHECK(saved[2] == saved[3]);
  CHECK(saved[0] != saved[2]);
  thread_nodes({2, 2}).run([&](nodes_of_threads communicator, std::size_t rank) {
    const std::size_t other = rank ^ 1U;
    replica mine(e.tensors, whole[4][other]);
    optimizer_type optimizer(mine.parameters(), options, std::move(communicator), one_thread());
    optimizer.load_state(saved[other]);
    take(optimizer, mine, rank, 5, 8);
    const bool is_same = same_bits(std::span<const float>(mine.values()), std::span(whole[7][rank]));
    if (!is_same) throw std::runtime_error("a rank went on to something else");
  });
}

}  // namespace communicator_hierarchical_communicator_recipes_tests
