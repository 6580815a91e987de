// The time of one step() of an optimizer, on one rank and on two.
#pragma once

#include <benchmark/benchmark.h>

#include <barrier>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "measurement.hpp"
#include "meeting.hpp"
#include "planned_bytes.hpp"
#include "slamb/slamb.hpp"
#include "workbench.hpp"

namespace bench {

/// A single rank over `tensors`.
template <class Optimizer>
result time_alone(benchmark::State& state, workbench& at, std::span<const slamb::parameter> tensors,
                  const typename Optimizer::options_type& options, const typename Optimizer::backend_type& backend) {
  Optimizer optimizer(tensors, options, {}, backend);
  for (int i = 0; i < untimed_steps; ++i) optimizer.step(learning_rate);
  const slamb::statistics before = optimizer.statistics();
  const bandwidth first = at.measure();
  result r;
  r.seconds = time_of_rounds(state, [&optimizer] { optimizer.step(learning_rate); });
  r.machine = mean(first, at.measure());
  r.bytes = planned_bytes(optimizer, before, optimizer.statistics(true), tensors, at.ranks());
  return r;
}

/// Both ranks finish a step before either starts the next: the time of a step is that of the slower rank.
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
    r.bytes = planned_bytes(optimizer, before, optimizer.statistics(true), at.of_rank(0).tensors(), at.ranks());
  });
  return r;
}

/// Registers step/<name>/<shapes>: one rank on all threads.
template <class Optimizer>
void register_single_rank(const std::string& name, const shape_set& shapes, unsigned threads,
                          const typename Optimizer::options_type& options) {
  register_one("step/" + name, shapes, 1, threads, [=](benchmark::State& state, workbench& at) {
    return time_alone<Optimizer>(state, at, at.of_rank(0).tensors(), options, {.threads = threads});
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
