// The forecast for an optimizer on the described machine: times, and comparisons with dense LAMB.
#pragma once

#include <cstdint>
#include <slamb/plan/network.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "optimizers.hpp"
#include "settings.hpp"

namespace plan {

/// The forecast for one optimizer. Times are in seconds, of a mean step.
struct forecast {
  std::string optimizer;
  outline moved;
  double model_bytes = 0.0;  ///< parameters and gradients of one rank
  double exchange_seconds = 0.0;
  double shards_seconds = 0.0;  ///< within the shard group
  double memory_seconds = 0.0;
  double step_seconds = 0.0;
  double efficiency = 0.0;      ///< compute/(compute + rest): the speed of N ranks in parts of N times one rank's speed
  double less_than_half = 0.0;  ///< how many times less than dense LAMB in fp16 it sends; infinite if it sends nothing
  double less_than_single = 0.0;         ///< how many times less than dense LAMB in fp32
  slamb::plan::break_even beats_half;    ///< dense LAMB in fp16
  slamb::plan::break_even beats_single;  ///< dense LAMB in fp32
};

namespace detail {

/// The network as the ranks see it that hold the same shard. S groups of them exchange at once. They share the nodes' links, and
/// each has an S-th of the ranks of a node.
inline slamb::plan::network network_of_exchange(const settings& chosen) {
  slamb::plan::network net = chosen.network;
  net.bandwidth /= chosen.shards;
  net.ranks_per_node /= chosen.shards;
  return net;
}

/// The time of all steps within the shard group, which is on one node.
inline double seconds_in_shards(const outline& moved, const settings& chosen) {
  slamb::traffic_counts counts;
  counts[slamb::collective::all_gather] = moved.in_shards;
  return slamb::plan::network_load::of(counts, chosen.network, chosen.shards).seconds(chosen.network);
}

/// The cost over all steps.
inline slamb::plan::training_cost cost_of(const outline& moved, const settings& chosen) {
  return {chosen.compute_seconds * static_cast<double>(chosen.steps) + moved.memory_bytes / chosen.memory_bandwidth +
              seconds_in_shards(moved, chosen),
          slamb::plan::network_load::of(moved.traffic, network_of_exchange(chosen), chosen.ranks)};
}

/// Bandwidths are of a node's link, which S exchanges share.
inline slamb::plan::break_even break_even_of(const slamb::plan::training_cost& cost, const outline& dense,
                                             const settings& chosen) {
  slamb::plan::break_even found =
      slamb::plan::find_break_even(cost, cost_of(dense, chosen), network_of_exchange(chosen));
  found.bandwidth *= chosen.shards;
  return found;
}

inline double times_less(const outline& moved, const outline& dense) {
  return static_cast<double>(dense.traffic.total().sent_bytes) / static_cast<double>(moved.traffic.total().sent_bytes);
}

inline forecast forecast_of(const std::string& name, const outline& moved, const settings& chosen, const outline& half,
                            const outline& single) {
  const auto steps = static_cast<double>(chosen.steps);
  const slamb::plan::training_cost cost = cost_of(moved, chosen);
  forecast f;
  f.optimizer = name;
  f.moved = moved;
  f.exchange_seconds = cost.load.seconds(network_of_exchange(chosen)) / steps;
  f.shards_seconds = seconds_in_shards(moved, chosen) / steps;
  f.memory_seconds = moved.memory_bytes / chosen.memory_bandwidth / steps;
  f.step_seconds = chosen.compute_seconds + f.memory_seconds + f.shards_seconds + f.exchange_seconds;
  f.efficiency = chosen.compute_seconds / f.step_seconds;
  f.less_than_half = times_less(moved, half);
  f.less_than_single = times_less(moved, single);
  f.beats_half = break_even_of(cost, half, chosen);
  f.beats_single = break_even_of(cost, single, chosen);
  return f;
}

}  // namespace detail

/// One forecast for each chosen optimizer.
inline std::vector<forecast> forecast_all(tensor_span tensors, const settings& chosen) {
  const auto world = [&chosen](std::uint64_t value_bytes) {
    return slamb::plan::world{chosen.ranks, value_bytes, storage_of(chosen), chosen.shards};
  };
  const outline half = plan_optimizer("lamb", tensors, chosen, world(2));
  const outline single = plan_optimizer("lamb", tensors, chosen, world(4));
  const slamb::plan::world ours = world(chosen.value_bytes);
  std::vector<forecast> all;
  for (const std::string& name : chosen.optimizers) {
    const outline moved = plan_optimizer(name, tensors, chosen, ours);
    all.push_back(detail::forecast_of(name, moved, chosen, half, single));
    all.back().model_bytes =
        static_cast<double>(elements_of_rank(tensors, ours)) * (ours.stored.data + ours.stored.gradient);
  }
  return all;
}

}  // namespace plan
