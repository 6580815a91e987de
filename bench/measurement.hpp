// Measures a benchmark and reports its result.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>

#include "bandwidth.hpp"
#include "shapes.hpp"
#include "workbench.hpp"

namespace bench {

/// The result of one benchmark.
struct result {
  double seconds = 0.0;  ///< of all timed rounds
  double bytes = 0.0;    ///< per element and round
  bandwidth machine;
};

/// Bytes per second are of all ranks. Nanoseconds per parameter are per parameter of one rank.
inline void report(benchmark::State& state, const workbench& at, const result& r) {
  const auto elements = static_cast<double>(at.elements());
  const double seconds = r.seconds / static_cast<double>(state.iterations());
  const double bytes_per_second = r.bytes * elements * static_cast<double>(at.ranks()) / seconds;
  state.counters["parameters"] = elements;
  state.counters["ns_per_param"] = seconds * 1e9 / elements;
  state.counters["bytes_per_param"] = r.bytes;
  state.counters["GB_per_s"] = bytes_per_second * 1e-9;
  state.counters["of_copy"] = bytes_per_second / r.machine.copy;
  state.counters["of_triad"] = bytes_per_second / r.machine.triad;
  state.counters["copy_GB_per_s"] = r.machine.copy * 1e-9;
  state.counters["triad_GB_per_s"] = r.machine.triad * 1e-9;
}

/// Wall-clock seconds of all rounds.
template <class Round>
double time_of_rounds(benchmark::State& state, const Round& round) {
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) round();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The time of rounds with `bytes` per element. One round before is not timed. The machine's bandwidth is measured before and
/// after.
template <class Round>
result time_of(benchmark::State& state, workbench& at, double bytes, const Round& round) {
  round();
  const bandwidth first = at.measure();
  result r;
  r.seconds = time_of_rounds(state, round);
  r.machine = mean(first, at.measure());
  r.bytes = bytes;
  return r;
}

/// Registers <name>/<shapes>. `time` is called with (state, workbench); an exception becomes the benchmark's error.
template <class Time>
void register_one(const std::string& name, const shape_set& shapes, std::size_t ranks, unsigned threads,
                  const Time& time) {
  benchmark::RegisterBenchmark((name + "/" + shapes.name).c_str(), [=](benchmark::State& state) {
    try {
      workbench& at = workbench::of(shapes, ranks, threads);
      const result r = time(state, at);
      report(state, at, r);
    } catch (const std::exception& failure) {
      state.SkipWithError(failure.what());
    }
  })->Unit(benchmark::kMillisecond);
}

}  // namespace bench
