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
  double exchange_seconds = 0.0;
  double memory_seconds = 0.0;
  double step_seconds = 0.0;
  double efficiency = 0.0;      ///< compute/(compute + rest): the speed of N ranks in parts of N times one rank's speed
  double less_than_half = 0.0;  ///< how many times less than dense LAMB in fp16 it sends; infinite if it sends nothing
  double less_than_single = 0.0;         ///< how many times less than dense LAMB in fp32
  slamb::plan::break_even beats_half;    ///< dense LAMB in fp16
  slamb::plan::break_even beats_single;  ///< dense LAMB in fp32
};

namespace detail {

/// The cost over all steps.
inline slamb::plan::training_cost cost_of(const outline& moved, const settings& chosen) {
  return {chosen.compute_seconds * static_cast<double>(chosen.steps) + moved.memory_bytes / chosen.memory_bandwidth,
          slamb::plan::network_load::of(moved.traffic, chosen.network, chosen.ranks)};
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
  f.exchange_seconds = cost.load.seconds(chosen.network) / steps;
  f.memory_seconds = moved.memory_bytes / chosen.memory_bandwidth / steps;
  f.step_seconds = chosen.compute_seconds + f.memory_seconds + f.exchange_seconds;
  f.efficiency = chosen.compute_seconds / f.step_seconds;
  f.less_than_half = times_less(moved, half);
  f.less_than_single = times_less(moved, single);
  f.beats_half = slamb::plan::find_break_even(cost, cost_of(half, chosen), chosen.network);
  f.beats_single = slamb::plan::find_break_even(cost, cost_of(single, chosen), chosen.network);
  return f;
}

}  // namespace detail

/// One forecast for each chosen optimizer.
inline std::vector<forecast> forecast_all(tensor_span tensors, const settings& chosen) {
  const slamb::plan::storage_bytes stored = storage_of(chosen);
  const outline half = plan_optimizer("lamb", tensors, chosen, {chosen.ranks, 2, stored});
  const outline single = plan_optimizer("lamb", tensors, chosen, {chosen.ranks, 4, stored});
  std::vector<forecast> all;
  for (const std::string& name : chosen.optimizers) {
    const outline moved = plan_optimizer(name, tensors, chosen, {chosen.ranks, chosen.value_bytes, stored});
    all.push_back(detail::forecast_of(name, moved, chosen, half, single));
  }
  return all;
}

}  // namespace plan
