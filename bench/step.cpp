// The time of one step() of every optimizer.
#include "step.hpp"

#include <benchmark/benchmark.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "counted_bytes.hpp"
#include "raw_loop.hpp"
#include "slamb/slamb.hpp"
#include "workbench.hpp"

namespace bench {
namespace {

constexpr double learning_rate = 1e-4;
constexpr int warm_up_steps = 2;  // the first of SLAMB averages the parameters

/// What one benchmark found.
struct result {
  double seconds = 0.0;  ///< of all timed steps
  double bytes = 0.0;    ///< an element a step
  bandwidth machine;
};

void report(benchmark::State& state, const workbench& at, const result& r) {
  const auto elements = static_cast<double>(at.elements());
  const double seconds = r.seconds / static_cast<double>(state.iterations());
  const double bytes_per_second = r.bytes * elements * static_cast<double>(at.ranks()) / seconds;
  state.counters["parameters"] = elements;
  state.counters["ns_per_param"] = seconds * 1e9 / elements;
  state.counters["bytes_per_param"] = r.bytes;
  state.counters["of_copy"] = bytes_per_second / r.machine.copy;
  state.counters["of_triad"] = bytes_per_second / r.machine.triad;
  state.counters["copy_GB_per_s"] = r.machine.copy * 1e-9;
  state.counters["triad_GB_per_s"] = r.machine.triad * 1e-9;
}

// In seconds, by the clock on the wall.
template <class Step>
double time_of_steps(benchmark::State& state, const Step& step) {
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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

template <class Optimizer>
double bytes_of_steps(const Optimizer& optimizer, const slamb::statistics& before, const slamb::statistics& after,
                      const workbench& at) {
  if (after.skipped_steps != 0 || !std::isfinite(after.norm.parameters))
    throw std::runtime_error("steps were skipped, or parameters are not finite");
  steps_taken taken{.last = after.step, .ranks = at.ranks()};
  if (at.ranks() > 1)
    taken.averagings = (averagings_until(optimizer, after.step) - averagings_until(optimizer, before.step)) /
                       static_cast<double>(after.step - before.step);
  return counted_bytes(optimizer, at.of_rank(0).tensors(), taken);
}

template <class Optimizer>
result time_alone(benchmark::State& state, workbench& at, const typename Optimizer::options_type& options,
                  unsigned threads) {
  Optimizer optimizer(at.of_rank(0).tensors(), options, {}, slamb::host_backend{.threads = threads});
  for (int i = 0; i < warm_up_steps; ++i) optimizer.step(learning_rate);
  const slamb::statistics before = optimizer.statistics();
  const bandwidth first = at.measure();
  result r;
  r.seconds = time_of_steps(state, [&optimizer] { optimizer.step(learning_rate); });
  r.machine = mean(first, at.measure());
  r.bytes = bytes_of_steps(optimizer, before, optimizer.statistics(true), at);
  return r;
}

// A rank that fails must not leave the other waiting.
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

// Both ranks finish a step before either starts the next: its time is that of the slower one.
template <class Optimizer>
result time_of_two_ranks(benchmark::State& state, workbench& at, const typename Optimizer::options_type& options) {
  result r;
  std::barrier<> barrier(2);
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    meeting ranks(barrier);
    Optimizer optimizer(at.of_rank(rank).tensors(), options, std::move(communicator),
                        slamb::host_backend{.threads = 1});
    for (int i = 0; i < warm_up_steps; ++i) optimizer.step(learning_rate);
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
    r.seconds = time_of_steps(state, step);
    r.machine = mean(first, at.measure());
    r.bytes = bytes_of_steps(optimizer, before, optimizer.statistics(true), at);
  });
  return r;
}

result time_raw_loop(benchmark::State& state, workbench& at, unsigned threads) {
  raw_adamw optimizer(at.of_rank(0), threads);
  for (int i = 0; i < warm_up_steps; ++i) optimizer.step(static_cast<float>(learning_rate));
  const bandwidth first = at.measure();
  result r;
  r.seconds = time_of_steps(state, [&optimizer] { optimizer.step(static_cast<float>(learning_rate)); });
  r.machine = mean(first, at.measure());
  r.bytes = raw_adamw::bytes_per_element;
  return r;
}

// `time` is called with (state, workbench); an exception becomes the benchmark's error.
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

template <class Optimizer>
void register_alone(const std::string& name, const shape_set& shapes, unsigned threads,
                    const typename Optimizer::options_type& options) {
  register_one("step/" + name, shapes, 1, threads, [=](benchmark::State& state, workbench& at) {
    return time_alone<Optimizer>(state, at, options, threads);
  });
}

template <class Optimizer>
void register_two_ranks(const std::string& name, const shape_set& shapes,
                        const typename Optimizer::options_type& options) {
  register_one("step/" + name + "/ranks:2", shapes, 2, 2, [=](benchmark::State& state, workbench& at) {
    return time_of_two_ranks<Optimizer>(state, at, options);
  });
}

template <class Communicator>
using slamb_bernoulli = slamb::slamb<Communicator, slamb::random_k<slamb::sampling::bernoulli>>;

std::string with_block(const std::string& name, std::size_t block) { return name + "/block:" + std::to_string(block); }

}  // namespace

void register_steps(const shape_set& shapes, unsigned threads) {
  register_one("raw_loop/adamw", shapes, 1, threads,
               [threads](benchmark::State& state, workbench& at) { return time_raw_loop(state, at, threads); });
  register_alone<slamb::adamw<>>("adamw_unchecked", shapes, threads, {.skip_non_finite = false});
  register_alone<slamb::adamw<>>("adamw", shapes, threads, {});
  register_alone<slamb::lamb<>>("lamb_unchecked", shapes, threads, {.skip_non_finite = false});
  register_alone<slamb::lamb<>>("lamb", shapes, threads, {});
  for (const std::size_t block : {1U, 16U, 64U})
    register_alone<slamb::slamb<>>(with_block("slamb", block), shapes, threads, {.compressor = {.block = block}});
  for (const std::size_t block : {1U, 16U})
    register_alone<slamb_bernoulli<slamb::self_communicator>>(with_block("slamb_bernoulli", block), shapes, threads,
                                                              {.compressor = {.block = block}});
}

void register_steps_of_two_ranks(const shape_set& shapes) {
  using communicator = slamb::thread_communicator;
  register_two_ranks<slamb::adamw<communicator>>("adamw", shapes, {});
  register_two_ranks<slamb::lamb<communicator>>("lamb", shapes, {});
  for (const std::size_t block : {1U, 16U, 64U})
    register_two_ranks<slamb::slamb<communicator>>(with_block("slamb", block), shapes,
                                                   {.compressor = {.block = block}});
  for (const std::size_t block : {1U, 16U})
    register_two_ranks<slamb_bernoulli<communicator>>(with_block("slamb_bernoulli", block), shapes,
                                                      {.compressor = {.block = block}});
}

}  // namespace bench
