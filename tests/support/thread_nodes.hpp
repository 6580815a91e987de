// Nodes whose ranks are threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace test_support {

using nodes_of_threads = slamb::hierarchical_communicator<slamb::thread_communicator, slamb::thread_communicator>;

/// The thread groups of several nodes: one for each node, and one for each local rank across the nodes that have it.
class thread_nodes {
 public:
  /// @param sizes  [nodes] the number of ranks of each
  explicit thread_nodes(std::vector<int> sizes, slamb::thread_options in_node = {.timeout = std::chrono::seconds(60)},
                        slamb::thread_options between = {})
      : sizes_(std::move(sizes)) {
    for (std::size_t node = 0; node < sizes_.size(); ++node)
      for (int local = 0; local < sizes_[node]; ++local) places_.emplace_back(node, local);
    for (const int size : sizes_) nodes_.emplace_back(size, in_node);
    for (int local = 0; local < *std::max_element(sizes_.begin(), sizes_.end()); ++local)
      between_.emplace_back(nodes_with(local, sizes_.size()), between);
  }

  slamb::thread_group& node(std::size_t i) { return nodes_[i]; }
  slamb::thread_group& between(std::size_t local) { return between_[local]; }

  /// Calls body(communicator, rank) on a thread for each rank, in the order of nodes; rethrows the first exception.
  template <class F>
  void run(const F& body) {
    slamb::run_ranks(static_cast<int>(places_.size()), [&](const slamb::thread_communicator& thread) {
      const auto rank = static_cast<std::size_t>(thread.rank());
      const auto [node, local] = places_[rank];
      body(nodes_of_threads(nodes_[node].communicator(local),
                            between_[static_cast<std::size_t>(local)].communicator(nodes_with(local, node))),
           rank);
    });
  }

 private:
  /// The number of the first `nodes` nodes that have this local rank.
  int nodes_with(int local, std::size_t nodes) const {
    return static_cast<int>(std::count_if(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(nodes),
                                          [local](int size) { return size > local; }));
  }

  std::vector<int> sizes_;
  std::vector<std::pair<std::size_t, int>> places_;  // [rank] node and local rank
  std::deque<slamb::thread_group> nodes_;
  std::deque<slamb::thread_group> between_;
};

/// Trains on `e.world` ranks in nodes of equal size; returns the parameters of every rank after every step.
template <class Optimizer, class Backend>
trajectory train_in_nodes(const experiment& e, int nodes, const typename Optimizer::options_type& options,
                          const Backend& backend) {
  trajectory reached = place_of(e);
  std::atomic<bool> intact{true};
  thread_nodes all(std::vector<int>(static_cast<std::size_t>(nodes), e.world / nodes));
  all.run([&](nodes_of_threads communicator, std::size_t rank) {
    if (!train_rank<Optimizer>(e, rank, options, std::move(communicator), backend, reached)) intact = false;
  });
  CHECK(intact);
  return reached;
}

/// The same experiment with nodes as ranks. The gradient of each is the mean of the node's gradients: each is multiplied by 1/n
/// and rounded, then they are added in the order of ranks.
inline experiment means_of_nodes(const experiment& e, int nodes) {
  experiment means = e;
  means.world = nodes;
  const auto per_node = static_cast<std::size_t>(e.world / nodes);
  const float share = 1.0F / static_cast<float>(per_node);
  for (auto& ranks : means.gradients) {
    const std::vector<std::vector<float>> given = std::exchange(ranks, {});
    for (std::size_t first = 0; first < given.size(); first += per_node) {
      ranks.emplace_back();
      for (std::size_t i = 0; i < given[first].size(); ++i) {
        double sum = 0.0;
        for (std::size_t local = 0; local < per_node; ++local) {
          const float product = given[first + local][i] * share;
          sum += static_cast<double>(product);
        }
        ranks.back().push_back(static_cast<float>(sum));
      }
    }
  }
  return means;
}

/// True if every rank has the bits of its node after every step.
inline bool ranks_have_bits_of_nodes(const trajectory& ranks, const trajectory& nodes) {
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    const std::size_t per_node = ranks[t].size() / nodes[t].size();
    for (std::size_t rank = 0; rank < ranks[t].size(); ++rank)
      if (!same_bits(std::span(ranks[t][rank]), std::span(nodes[t][rank / per_node]))) return false;
  }
  return true;
}

}  // namespace test_support
