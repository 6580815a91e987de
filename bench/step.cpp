// The time of one step() of the optimizers that exchange floats.
#include "step.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "measurement.hpp"
#include "raw_loop.hpp"
#include "slamb/slamb.hpp"
#include "step_time.hpp"
#include "workbench.hpp"

namespace bench {
namespace {

result time_raw_loop(benchmark::State& state, workbench& at, unsigned threads) {
  raw_adamw optimizer(at.of_rank(0), threads);
  for (int i = 0; i < untimed_steps; ++i) optimizer.step(static_cast<float>(learning_rate));
  const bandwidth first = at.measure();
  result r;
  r.seconds = time_of_rounds(state, [&optimizer] { optimizer.step(static_cast<float>(learning_rate)); });
  r.machine = mean(first, at.measure());
  r.bytes = raw_adamw::bytes_per_element;
  return r;
}

template <class Communicator>
using slamb_bernoulli = slamb::slamb<Communicator, slamb::random_k<slamb::sampling::bernoulli>>;

std::string with_block(const std::string& name, std::size_t block) { return name + "/block:" + std::to_string(block); }

}  // namespace

void register_steps(const shape_set& shapes, unsigned threads) {
  register_one("raw_loop/adamw", shapes, 1, threads,
               [threads](benchmark::State& state, workbench& at) { return time_raw_loop(state, at, threads); });
  register_single_rank<slamb::adamw<>>("adamw_unchecked", shapes, threads, {.skip_non_finite = false});
  register_single_rank<slamb::adamw<>>("adamw", shapes, threads, {});
  register_single_rank<slamb::lamb<>>("lamb_unchecked", shapes, threads, {.skip_non_finite = false});
  register_single_rank<slamb::lamb<>>("lamb", shapes, threads, {});
  for (const std::size_t block : {1U, 16U, 64U})
    register_single_rank<slamb::slamb<>>(with_block("slamb", block), shapes, threads, {.compressor = {.block = block}});
  for (const std::size_t block : {1U, 16U})
    register_single_rank<slamb_bernoulli<slamb::self_communicator>>(with_block("slamb_bernoulli", block), shapes,
                                                                    threads, {.compressor = {.block = block}});
}

void register_steps_of_two_ranks(const shape_set& shapes) {
  using communicator = slamb::thread_communicator;
  register_two_ranks<slamb::adamw<communicator>>("adamw", shapes, {});
  register_two_ranks<slamb::lamb<communicator>>("lamb", shapes, {});
  // The cost of comparing parameters: in every step, and never. The default is every hundredth step.
  for (const std::uint64_t every : {1U, 0U})
    register_two_ranks<slamb::lamb<communicator>>("lamb/compare_every:" + std::to_string(every), shapes,
                                                  {.ranks = {.compare_every = every}});
  for (const std::size_t block : {1U, 16U, 64U})
    register_two_ranks<slamb::slamb<communicator>>(with_block("slamb", block), shapes,
                                                   {.compressor = {.block = block}});
  for (const std::size_t block : {1U, 16U})
    register_two_ranks<slamb_bernoulli<communicator>>(with_block("slamb_bernoulli", block), shapes,
                                                      {.compressor = {.block = block}});
  // What it costs to exchange differences of the parameters: in no step, and in every step.
  for (const std::int64_t every : {0, 1})
    register_two_ranks<slamb::slamb_by_differences<communicator>>("slamb_by_differences/every:" + std::to_string(every),
                                                                  shapes, {.local_steps = every});
}

}  // namespace bench
