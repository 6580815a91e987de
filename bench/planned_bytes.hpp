// The bytes of memory traffic of an optimizer's steps, as planned, on any backend.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "slamb/slamb.hpp"

namespace bench {

inline constexpr double learning_rate = 1e-4;
/// Steps before the clock starts: the first step of SLAMB averages the parameters, and the variance of the others is frozen
/// after the first step.
inline constexpr int untimed_steps = 2;

/// @param after  with norms
/// @throws std::runtime_error if steps were skipped, or a parameter is not finite
inline void require_taken(const slamb::statistics& after) {
  if (after.skipped_steps != 0 || after.local_skips != 0 || !std::isfinite(after.norm.parameters))
    throw std::runtime_error("steps were skipped, or parameters are not finite");
}

/// The plan of this optimizer.
/// @param tensors  of one of the `ranks`
template <class Optimizer>
slamb::plan::traffic_plan plan_of(const Optimizer& optimizer, std::span<const slamb::parameter> tensors,
                                  std::size_t ranks) {
  std::vector<slamb::plan::tensor_shape> shapes;
  for (const slamb::parameter& tensor : tensors)
    shapes.push_back({tensor.size, tensor.dimensions, tensor.options.compress});
  return slamb::plan::plan_traffic<Optimizer>(
      shapes, optimizer.options(),
      {.ranks = static_cast<int>(ranks), .stored = slamb::plan::stored_by<typename Optimizer::backend_type>(tensors)});
}

/// Bytes per element and step of the steps between two reports, which were taken.
///
/// @param after  with norms
/// @throws std::runtime_error if steps were skipped, or were of more than one phase
template <class Optimizer>
double planned_bytes(const Optimizer& optimizer, const slamb::statistics& before, const slamb::statistics& after,
                     std::span<const slamb::parameter> tensors, std::size_t ranks) {
  require_taken(after);
  if (after.phase != before.phase) throw std::runtime_error("the steps belong to more than one phase");
  const slamb::plan::traffic_plan plan = plan_of(optimizer, tensors, ranks);
  const auto until = [&plan](std::uint64_t step) { return static_cast<double>(step) * plan.memory_bytes(step); };
  const double first = until(before.step);
  return (until(after.step) - first) / static_cast<double>(after.step - before.step);
}

/// The part of the elements that a sparsifier selects at step t; 0 for optimizers without one.
template <class Optimizer>
double payload_at(std::uint64_t t, const Optimizer& optimizer, std::span<const slamb::parameter> tensors,
                  std::size_t ranks) {
  std::uint64_t elements = 0;
  for (const slamb::parameter& tensor : tensors) elements += tensor.size;
  return static_cast<double>(plan_of(optimizer, tensors, ranks).selected(t)) / static_cast<double>(elements);
}

}  // namespace bench
