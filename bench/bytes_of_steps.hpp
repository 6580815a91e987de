// The bytes of memory traffic of the steps between two reports of an optimizer, on any backend.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "counted_bytes.hpp"
#include "slamb/slamb.hpp"

namespace bench {

inline constexpr double learning_rate = 1e-4;
/// Steps before the clock starts: the first step of SLAMB averages the parameters, and the variance of the others is frozen
/// after the first step.
inline constexpr int untimed_steps = 2;

// Parameters are averaged after steps 1, 1 + H, 1 + 2H, …
template <class Optimizer>
double averagings_until(const Optimizer& optimizer, std::uint64_t step) {
  if constexpr (requires { optimizer.options().local_steps; }) {
    const auto steps = static_cast<std::uint64_t>(optimizer.options().local_steps);
    if (steps == 0) return 0.0;
    const std::uint64_t averagings = (step + steps - 1) / steps;
    return static_cast<double>(averagings);
  } else {
    return 0.0;
  }
}

/// @param after  with norms
/// @throws std::runtime_error if steps were skipped, or a parameter is not finite
inline void require_taken(const slamb::statistics& after) {
  if (after.skipped_steps != 0 || after.local_skips != 0 || !std::isfinite(after.norm.parameters))
    throw std::runtime_error("steps were skipped, or parameters are not finite");
}

/// Counts the bytes per element of the steps between two reports, and checks that the steps were taken.
///
/// @param after  with norms
/// @param tensors  of one of the `ranks`
/// @throws std::runtime_error if steps were skipped, or were of more than one phase
template <class Optimizer>
double bytes_of_steps(const Optimizer& optimizer, const slamb::statistics& before, const slamb::statistics& after,
                      std::span<const slamb::parameter> tensors, std::size_t ranks) {
  require_taken(after);
  if (after.phase != before.phase) throw std::runtime_error("the steps belong to more than one phase");
  const auto steps = static_cast<double>(after.step - before.step);
  const slamb::traffic_counts sent = after.traffic - before.traffic;
  steps_taken taken{.last = after.step, .phase = after.phase, .ranks = static_cast<int>(ranks)};
  taken.exchanges_of_codes = static_cast<double>(sent[slamb::collective::all_to_all].rounds) / steps;
  if (ranks > 1)
    taken.averagings = (averagings_until(optimizer, after.step) - averagings_until(optimizer, before.step)) / steps;
  return counted_bytes(optimizer, tensors, taken);
}

}  // namespace bench
