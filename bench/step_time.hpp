// The time of one step() of an optimizer, on one rank and on two.
#pragma once

#include <benchmark/benchmark.h>

#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "counted_bytes.hpp"
#include "counted_one_bit_bytes.hpp"
#include "measurement.hpp"
#include "slamb/slamb.hpp"
#include "workbench.hpp"

namespace bench {

inline constexpr double learning_rate = 1e-4;
/// Steps before the clock starts: the first of SLAMB averages the parameters, and after the first the variance of the
/// others is frozen.
inline constexpr int untimed_steps = 2;

// Parameters are averaged after steps 1, 1 + H, 1 + 2H, …
template <class Optimizer>
double averagings_until(const Optimizer& optimizer, std::uint64_t step) {
  if constexpr (requires { optimizer.options().local_steps; }) {
    const auto steps = static_cast<std::uint64_t>(optimizer.options().local_steps);
    const std::uint64_t averagings = (step + steps - 1) / steps;
    return static_cast<double>(averagings);
  } else {
    return 0.0;
  }
}

/// Counts the bytes an element of the steps between two reports, and sees that they were taken.
template <class Optimizer>
double bytes_of_steps(const Optimizer& optimizer, const slamb::statistics& before, const slamb::statistics& after,
                      const workbench& at) {
  if (after.skipped_steps != 0 || after.local_skips != 0 || !std::isfinite(after.norm.parameters))
    throw std::runtime_error("steps were skipped, or parameters are not finite");
  if (after.phase != before.phase) throw std::runtime_error("the steps are of more than one phase");
  const auto steps = static_cast<double>(after.step - before.step);
  const slamb::traffic_counts sent = after.traffic - before.traffic;
  steps_taken taken{.last = after.step, .phase = after.phase, .ranks = at.ranks()};
  taken.exchanges_of_codes = static_cast<double>(sent[slamb::collective::all_to_all].rounds) / steps;
  if (at.ranks() > 1)
    taken.averagings = (averagings_until(optimizer, after.step) - averagings_until(optimizer, before.step)) / steps;
  return counted_bytes(optimizer, at.of_rank(0).tensors(), taken);
}

template <class Optimizer>
result time_alone(benchmark::State& state, workbench& at, const typename Optimizer::options_type& options,
                  unsigned threads) {
  Optimizer optimizer(at.of_rank(0).tensors(), options, {}, slamb::host_backend{.threads = threads});
  for (int i = 0; i < untimed_steps; ++i) optimizer.step(learning_rate);
  const slamb::statistics before = optimizer.statistics();
  const bandwidth first = at.measure();
  result r;
  r.seconds = time_of_rounds(state, [&optimizer] { optimizer.step(learning_rate); });
  r.machine = mean(first, at.measure());
  r.bytes = bytes_of_steps(optimizer, before, optimizer.statistics(true), at);
  return r;
}

/// A rank that fails must not leave the other waiting.
class meeting {
 public:
  explicit meeting(std::barrier<>& ranks) : ranks_(ranks) {}
  meeting(const meeting&) = delete;
  meeting& operator=(const meeting&) = delete;
  ~meeting() { ranks_.arrive_and_drop(); }
  void wait() { ranks_.arrive_and_wait(); }

 private:
  std::barrier<>& ranks_;
};

/// Both ranks finish a step before either starts the next: its time is that of the slower one.
template <class Optimizer>
result time_of_two_ranks(benchmark::State& state, workbench& at, const typename Optimizer::options_type& options) {
  result r;
  std::barrier<> barrier(2);
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    meeting ranks(barrier);
    Optimizer optimizer(at.of_rank(rank).tensors(), options, std::move(communicator),
                        slamb::host_backend{.threads = 1});
    for (int i = 0; i < untimed_steps; ++i) optimizer.step(learning_rate);
    const slamb::statistics before = optimizer.statistics();
    bandwidth first;
    if (rank == 0) first = at.measure();
    ranks.wait();
    const auto step = [&optimizer, &ranks] {
      optimizer.step(learning_rate);
      ranks.wait();
    };
    if (rank != 0) {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) step();
      return;
    }
    r.seconds = time_of_rounds(state, step);
    r.machine = mean(first, at.measure());
    r.bytes = bytes_of_steps(optimizer, before, optimizer.statistics(true), at);
  });
  return r;
}

/// Registers step/<name>/<shapes>: one rank on all threads.
template <class Optimizer>
void register_alone(const std::string& name, const shape_set& shapes, unsigned threads,
                    const typename Optimizer::options_type& options) {
  register_one("step/" + name, shapes, 1, threads, [=](benchmark::State& state, workbench& at) {
    return time_alone<Optimizer>(state, at, options, threads);
  });
}

/// Registers step/<name>/ranks:2/<shapes>: two ranks in this process, a thread each.
template <class Optimizer>
void register_two_ranks(const std::string& name, const shape_set& shapes,
                        const typename Optimizer::options_type& options) {
  register_one("step/" + name + "/ranks:2", shapes, 2, 2, [=](benchmark::State& state, workbench& at) {
    return time_of_two_ranks<Optimizer>(state, at, options);
  });
}

}  // namespace bench
