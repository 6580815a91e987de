// The time of an optimizer's steps over MPI processes, and the planner's forecast of their traffic.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../workbench.hpp"
#include "settings.hpp"
#include "slamb/mpi.hpp"
#include "slamb/plan/network.hpp"
#include "slamb/plan/traffic.hpp"
#include "slamb/slamb.hpp"
#include "timed_communicator.hpp"

namespace bench::distributed {

/// The Communicator of all measurements.
using ranks = timed_communicator<slamb::mpi_communicator>;

/// The settings and the model of all measurements, on one rank.
struct scene {
  const settings& chosen;
  model& parameters;
  const std::vector<slamb::plan::tensor_shape>& tensors;  ///< of `parameters`, for the planner
  int rank = 0;
  int size = 1;
};

inline ranks all_ranks(const scene& at, exchange_clock& clock) {
  return {slamb::mpi_communicator(MPI_COMM_WORLD, {.message_bytes = at.chosen.message_bytes}), clock};
}

/// The steps of an optimizer that are timed.
struct course {
  std::string phase;          ///< statistics() must name it before and after them
  std::uint64_t period = 1;   ///< steps after which the kinds of steps repeat
  std::uint64_t untimed = 2;  ///< steps before them, in which the phase is reached
};

/// Times are in seconds per mean step; see `mean_of_medians`.
struct measurement {
  std::string optimizer{};
  std::string phase{};
  std::uint64_t steps = 0;                  ///< timed steps
  std::uint64_t period = 1;                 ///< in steps
  double sent_bytes = 0.0;                  ///< by a rank, per step
  double rounds = 0.0;                      ///< collectives per step
  double step_seconds = 0.0;                ///< until the slowest rank is done
  double compute_seconds = 0.0;             ///< outside of collectives, of the slowest rank
  std::vector<double> each_step{};          ///< [steps] s, until the slowest rank was done
  slamb::plan::network_load planned{};      ///< of the timed steps
  slamb::statistics::choice_type choice{};  ///< the choice, if the optimizer made one
  double choice_seconds = 0.0;              ///< time of the choice, including the construction of the chosen optimizer

  double exchange_seconds() const noexcept { return step_seconds - compute_seconds; }
  double predicted_exchange_seconds(const slamb::plan::network& net) const {
    return planned.seconds(net) / static_cast<double>(steps);
  }
};

/// The median of the times [whole periods] at each position in the period, then the mean of these medians. With a period of
/// one: the median of all times.
double mean_of_medians(const std::vector<double>& seconds, std::uint64_t period);

/// The largest of the ranks' values, for each position. Collective.
std::vector<double> largest_of_ranks(std::vector<double> values);

/// True if another period is to be timed. Collective: rank 0 decides and tells the others.
bool goes_on(const settings& chosen, std::uint64_t steps, double seconds);

namespace detail {

// The planner's traffic of steps first + 1 … last. It must equal the library's counts. Steps in parts have the same bytes, in
// more collectives.
template <class Options>
slamb::plan::network_load planned_load(const scene& at, const std::string& name, const Options& options,
                                       const slamb::statistics& before, const slamb::statistics& after) {
  const auto plan =
      slamb::plan::plan_traffic(std::span<const slamb::plan::tensor_shape>(at.tensors), options, {.ranks = at.size});
  const slamb::traffic_counts planned = plan.total(after.step) - plan.total(before.step);
  const slamb::traffic_counts sent = after.traffic - before.traffic;
  if (at.chosen.in_parts ? planned.total().sent_bytes != sent.total().sent_bytes : planned != sent)
    throw std::runtime_error(name + ": the planner says that a rank sends " +
                             std::to_string(planned.total().sent_bytes) + " bytes, but it has sent " +
                             std::to_string(sent.total().sent_bytes));
  return slamb::plan::network_load::of(planned, {.ranks_per_node = 1}, at.size);
}

template <class Optimizer>
void take_step(const scene& at, Optimizer& optimizer) {
  constexpr double learning_rate = 1e-4;
  if (!at.chosen.in_parts) return optimizer.step(learning_rate);
  optimizer.begin_step(learning_rate);
  for (std::size_t tensor = at.tensors.size(); tensor-- > 0;) optimizer.gradient_ready(tensor, 1);
  optimizer.finish_step();
}

inline void require_phase(const std::string& name, const slamb::statistics& now, const std::string& phase) {
  if (now.phase != phase)
    throw std::runtime_error(name + ": step " + std::to_string(now.step) + " was in the phase '" + now.phase +
                             "', but '" + phase + "' must be measured");
}

/// A barrier that leaves the processors to ranks that still work: MPI's own barrier polls without a pause.
inline void meet() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace detail

/// Takes whole periods of steps. All ranks meet before and after each step.
///
/// @param optimizer  one of the library's recipes, before its first step; `clock` runs in its collectives
/// @throws std::runtime_error if steps were skipped or of another phase, or if the planner counts other bytes
template <class Optimizer, class Options>
measurement measure_steps(const scene& at, const std::string& name, Optimizer& optimizer, const Options& options,
                          exchange_clock& clock, const course& steps) {
  for (std::uint64_t i = 0; i < steps.untimed; ++i) detail::take_step(at, optimizer);
  const slamb::statistics before = optimizer.statistics();
  detail::require_phase(name, before, steps.phase);

  std::vector<double> step_seconds, compute_seconds;
  double all_seconds = 0.0;
  do {
    for (std::uint64_t i = 0; i < steps.period; ++i) {
      detail::meet();
      clock.seconds = 0.0;
      const double start = MPI_Wtime();
      detail::take_step(at, optimizer);
      const double seconds = MPI_Wtime() - start;
      detail::meet();
      step_seconds.push_back(seconds);
      compute_seconds.push_back(seconds - clock.seconds);
      all_seconds += seconds;
    }
  } while (goes_on(at.chosen, step_seconds.size(), all_seconds));

  const slamb::statistics after = optimizer.statistics(true);
  detail::require_phase(name, after, steps.phase);
  if (after.skipped_steps != 0 || after.local_skips != 0 || !std::isfinite(after.norm.parameters))
    throw std::runtime_error(name + ": steps were skipped, or parameters are not finite");

  measurement m{.optimizer = name, .phase = steps.phase, .steps = step_seconds.size(), .period = steps.period};
  const slamb::traffic sent = (after.traffic - before.traffic).total();
  m.sent_bytes = static_cast<double>(sent.sent_bytes) / static_cast<double>(m.steps);
  m.rounds = static_cast<double>(sent.rounds) / static_cast<double>(m.steps);
  m.each_step = largest_of_ranks(step_seconds);
  m.step_seconds = mean_of_medians(m.each_step, steps.period);
  m.compute_seconds = mean_of_medians(largest_of_ranks(compute_seconds), steps.period);
  m.planned = detail::planned_load(at, name, options, before, after);
  return m;
}

/// Constructs the optimizer, then measures its steps.
template <class Optimizer>
measurement measure(const scene& at, const std::string& name, const typename Optimizer::options_type& options,
                    const course& steps) {
  at.parameters.fill(at.chosen.threads);
  exchange_clock clock;
  Optimizer optimizer(at.parameters.tensors(), options, all_ranks(at, clock), {.threads = at.chosen.threads});
  return measure_steps(at, name, optimizer, options, clock, steps);
}

}  // namespace bench::distributed
