// Limits of a step's cost besides its passes, for every optimizer, exchange and phase: the number of collectives does not grow
// with the number of tensors, and nothing is allocated. And results are bit for bit equal for every number of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/allocations.hpp"
#include "support/cluster.hpp"
#include "support/every_recipe.hpp"

namespace properties_collectives_tests {
namespace {

using slamb::thread_communicator;
using test_support::every_recipe;
using test_support::experiment;
using test_support::made_optimizer;
using test_support::maker_of;
using test_support::model;
using test_support::optimizer_maker;
using test_support::recipe;
using test_support::replica;
using test_support::steps_of_recipes;

constexpr int world = 3;
constexpr std::size_t elements = 398 * 25;

/// `elements` in tensors of nearly equal size; every `dense`-th is dense, none if 0.
experiment equal_parts(std::size_t tensors, std::size_t dense = 0) {
  model all;
  for (std::size_t i = 0; i < tensors; ++i) {
    all.push_back({elements * (i + 1) / tensors - elements * i / tensors});
    all.back().options.compress = dense == 0 || i % dense != 0;
  }
  return test_support::make_experiment(all, 41, world, steps_of_recipes);
}

/// The statistics of rank 0 after each step.
std::vector<slamb::statistics> statistics_of_steps(const experiment& e, const optimizer_maker& make) {
  std::vector<slamb::statistics> said;
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer optimizer =
        make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(e.rates[t]);
      if (rank == 0) said.push_back(optimizer.statistics());
    }
  });
  return said;
}

using round_counts = std::vector<std::uint64_t>;  // [steps]

round_counts rounds_of_steps(const std::vector<slamb::statistics>& said) {
  round_counts rounds;
  std::uint64_t before = 0;
  for (const slamb::statistics& s : said) {
    const std::uint64_t after = s.traffic.total().rounds;
    rounds.push_back(after - std::exchange(before, after));
  }
  return rounds;
}

round_counts rounds_of(const experiment& e, const optimizer_maker& make) {
  return rounds_of_steps(statistics_of_steps(e, make));
}

std::string text(const round_counts& rounds) {
  std::string all;
  for (const std::uint64_t of_step : rounds) all += std::to_string(of_step) + ' ';
  return all;
}

/// The number of steps with more collectives than `most`. Step 1 does not count with SLAMB, because it averages parameters.
std::size_t steps_above(const round_counts& rounds, const round_counts& most, bool averages) {
  std::size_t above = 0;
  for (std::size_t t = averages ? 1 : 0; t < rounds.size(); ++t) above += rounds[t] > most[t] ? 1U : 0U;
  return above;
}

/// Allocates in every sum.
class allocating_communicator {
 public:
  explicit allocating_communicator(slamb::any_communicator<> base) : base_(std::move(base)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    ::operator delete(::operator new(100));
    base_.all_reduce_sum(values, stream);
  }

 private:
  slamb::any_communicator<> base_;
};

/// The sum of the traffic of all phases.
slamb::traffic_counts sum_of(const std::vector<slamb::statistics::phase_type>& phases) {
  slamb::traffic_counts sum;
  for (const slamb::statistics::phase_type& phase : phases)
    for (const slamb::collective kind : {slamb::collective::all_reduce, slamb::collective::all_gather,
                                         slamb::collective::all_to_all, slamb::collective::broadcast})
      sum[kind] = sum[kind] + phase.traffic[kind];
  return sum;
}

/// The payloads of one rank's collectives.
struct handed {
  std::size_t messages = 0;  // of codes
  std::size_t sums = 0;
  std::size_t misplaced = 0;       // payloads that do not begin at a multiple of 128 bytes
  std::size_t misshapen = 0;       // messages whose size is no multiple of 128 bytes
  std::vector<std::byte> message;  // the first
};

/// Checks the addresses and sizes of messages.
class measuring_communicator {
 public:
  measuring_communicator(thread_communicator base, handed& seen) : base_(std::move(base)), seen_(&seen) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    if (values.size() > header) ++seen_->sums;
    if (values.size() > header) look_at(std::as_bytes(values));
    base_.all_reduce_sum(values, stream);
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    const std::size_t bytes = send.size() / static_cast<std::size_t>(size());
    for (std::size_t first = 0; first < send.size(); first += bytes) look_at_message(send.subspan(first, bytes));
    look_at(receive);
    base_.all_to_all(send, receive, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    look_at_message(mine);
    look_at(all);
    base_.all_gather(mine, all, stream);
  }

 private:
  void look_at(std::span<const std::byte> what) {
    if (reinterpret_cast<std::uintptr_t>(what.data()) % 128 != 0) ++seen_->misplaced;
  }
  void look_at_message(std::span<const std::byte> message) {
    look_at(message);
    if (message.size() % 128 != 0) ++seen_->misshapen;
    if (seen_->messages++ == 0) seen_->message.assign(message.begin(), message.end());
  }

  static constexpr std::size_t header =
      16;  // floats before each sum; the comparison before the first step has only these

  thread_communicator base_;
  handed* seen_;
};

/// The payloads of rank 1's collectives in all steps of `e`, from uninitialized memory.
template <class Optimizer>
handed handed_by(const experiment& e, const typename Optimizer::options_type& options) {
  std::vector<handed> of_rank(static_cast<std::size_t>(e.world));
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    slamb::host_backend backend = test_support::one_thread();
    backend.memory.allocate = [allocate = backend.memory.allocate](std::size_t bytes) {
      return std::memset(allocate(bytes), 0x5A, bytes);
    };
    Optimizer optimizer(mine.parameters(), options, {std::move(communicator), of_rank[rank]}, backend);
    of_rank[rank] = {};
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(0.01);
    }
  });
  return of_rank[1];
}

template <class Compressor>
using measured_lamb = slamb::lamb<Compressor, slamb::two_sided<>, measuring_communicator>;

constexpr int ranks_that_allocate = 2;

/// Calls of operator new by all ranks, in each step.
std::vector<std::size_t> allocations_of_steps(const optimizer_maker& make) {
  const experiment e = test_support::make_experiment({{20'000}, {70}, {300, 1}}, 43, ranks_that_allocate, 1);
  std::vector<std::size_t> found(steps_of_recipes);
  std::barrier all_ranks(ranks_that_allocate);
  slamb::run_ranks(ranks_that_allocate, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    mine.set_gradient(e.gradients[0][rank]);
    made_optimizer optimizer =
        make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), test_support::one_thread());
    for (std::size_t& in_step : found) {
      all_ranks.arrive_and_wait();
      const std::size_t before = test_support::allocations();
      all_ranks.arrive_and_wait();
      optimizer.step(0.01);
      all_ranks.arrive_and_wait();
      if (rank == 0) in_step = test_support::allocations() - before;
    }
  });
  return found;
}

}  // namespace

TEST_CASE("collectives: a step makes as many calls with 398 tensors as with 7") {
  const experiment few = equal_parts(7), many = equal_parts(398);
  for (const recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const round_counts with_few = rounds_of(few, r.make), with_many = rounds_of(many, r.make);
    round_counts expected = r.rounds;
    if (r.averages_at_first) {  // averaged in pieces of whole tiles; smaller pieces fit better
      CHECK(with_many[0] > expected[0]);
      CHECK(with_many[0] <= with_few[0]);
      expected[0] = with_many[0];
    } else {
      CHECK(with_many[0] == with_few[0]);
    }
    CHECK(text(with_many) == text(expected));
    CHECK(steps_above(with_few, expected, r.averages_at_first) == 0);
  }
}

TEST_CASE("collectives: dense tensors cost one more call, for any number of them") {
  const experiment few = equal_parts(7, 2), many = equal_parts(398, 2);
  for (const recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const round_counts with_many = rounds_of(many, r.make);
    CHECK(steps_above(with_many, rounds_of(few, r.make), r.averages_at_first) == 0);
    round_counts most = r.rounds;
    for (std::uint64_t& of_step : most) of_step += of_step > 0 ? 1 : 0;
    CHECK(steps_above(with_many, most, r.averages_at_first) == 0);
  }
}

TEST_CASE("collectives: the comparison can fail") {
  using optimizer = slamb::one_bit_adam<thread_communicator>;
  const recipe r = test_support::recipe_of<optimizer>("", {.warm_up = {4}}, test_support::after_warm_up(4), {});
  const experiment few = equal_parts(7);
  const round_counts rounds = rounds_of(few, r.make);
  CHECK(text(rounds) == text(r.rounds));
  CHECK(text(rounds) != text(rounds_of(few, maker_of<optimizer>({.warm_up = {5}}))));
  CHECK(text(rounds) != text(rounds_of(equal_parts(7, 2), r.make)));
  CHECK(steps_above(rounds, test_support::always(1), false) == steps_of_recipes - 4);
  CHECK(steps_above(rounds, test_support::always(1), true) == steps_of_recipes - 4);
  CHECK(steps_above(rounds, test_support::always(0), true) == steps_of_recipes - 1);
}

TEST_CASE("collectives: messages begin at multiples of 128 bytes and have such sizes, and sums begin there") {
  const experiment e = test_support::make_experiment({{7001}, {3, 1}, {1000}, {129, 1}}, 45, world, 3);
  const auto check = [](const handed& seen, std::size_t messages, std::size_t sums) {
    CHECK(seen.messages == messages);
    CHECK(seen.sums == sums);
    CHECK(seen.misplaced == 0);
    CHECK(seen.misshapen == 0);
  };
  constexpr std::size_t a_step = world + 1;
  check(handed_by<measured_lamb<slamb::int8>>(e, {}), 3 * a_step, 0);
  check(handed_by<slamb::one_bit_adam<measuring_communicator>>(e, {.warm_up = {1}}), 2 * a_step, 1);
  using signs_of_payloads = slamb::slamb<measuring_communicator, slamb::chain<slamb::random_k<>, slamb::sign>>;
  check(handed_by<signs_of_payloads>(e, {.local_steps = 0, .dense_below = 10}), 3 * a_step, 0);
  check(handed_by<slamb::lamb<measuring_communicator>>(e, {}), 0, 3);
}

TEST_CASE("collectives: the padding of a message is zeros, for any previous memory") {
  // Chunks of 256 elements: each message has a header of 16 bytes, a scale, and 32 bytes of signs from byte 32 on.
  const experiment e = test_support::make_experiment({{700}}, 46, 3, 1);
  const std::vector<std::byte> message = handed_by<measured_lamb<slamb::sign>>(e, {}).message;
  REQUIRE(message.size() == 128);
  const auto is_set = [](std::byte b) { return b != std::byte{0}; };
  CHECK(std::none_of(message.begin(), message.begin() + 16, is_set));
  CHECK(std::any_of(message.begin() + 16, message.begin() + 20, is_set));
  CHECK(std::none_of(message.begin() + 20, message.begin() + 32, is_set));
  CHECK(std::any_of(message.begin() + 32, message.begin() + 64, is_set));
  CHECK(std::none_of(message.begin() + 64, message.end(), is_set));
}

TEST_CASE("statistics: phases have names and first steps, and their traffic adds up to the total after every step") {
  const experiment e = equal_parts(7);
  for (const recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const std::vector<slamb::statistics> said = statistics_of_steps(e, r.make);
    for (const slamb::statistics& s : said) {
      CHECK(sum_of(s.phases) == s.traffic);
      CHECK(s.phase == s.phases.back().name);
    }
    const std::vector<slamb::statistics::phase_type>& phases = said.back().phases;
    REQUIRE(phases.size() == r.phases.size());
    for (std::size_t i = 0; i < phases.size(); ++i) {
      CHECK(phases[i].name == r.phases[i].name);
      CHECK(phases[i].first_step == r.phases[i].first_step);
      const std::size_t end = i + 1 < phases.size() ? r.phases[i + 1].first_step - 1 : said.size();
      const round_counts rounds = rounds_of_steps(said);
      CHECK(phases[i].traffic.total().rounds ==
            std::accumulate(rounds.begin() + static_cast<std::ptrdiff_t>(r.phases[i].first_step - 1),
                            rounds.begin() + static_cast<std::ptrdiff_t>(end), std::uint64_t{0}));
    }
  }
}

TEST_CASE("step: allocates nothing in any phase, nor when one ends") {
  for (const recipe& r : every_recipe()) {
    CAPTURE(r.name);
    std::vector<std::size_t> found = allocations_of_steps(r.make);
    if (r.equalizes_momenta) {
      std::size_t& at_the_end = found[r.phases[1].first_step - 2];  // at the end of the warm-up: a list of the tensors
      CHECK(at_the_end <= ranks_that_allocate);
      at_the_end = 0;
    }
    CHECK(std::accumulate(found.begin(), found.end(), std::size_t{0}) == 0);
  }
}

TEST_CASE("step: the count of allocations in a step can fail") {
  const auto make = [](std::span<const slamb::parameter> parameters, slamb::any_communicator<> ranks,
                       const slamb::host_backend& backend) {
    using optimizer = slamb::lamb<allocating_communicator>;
    return made_optimizer(optimizer(parameters, {}, allocating_communicator(std::move(ranks)), backend));
  };
  const std::vector<std::size_t> found = allocations_of_steps(make);
  CHECK(std::count(found.begin(), found.end(), std::size_t{0}) == 0);
}

TEST_CASE("determinism: every recipe has the same bits with one thread and with two, through all of its phases") {
  const experiment e =
      test_support::make_experiment({{70'001}, {9000}, {17, 1}, {0}, {8193, 3}}, 44, 2, steps_of_recipes);
  for (const recipe& r : every_recipe()) {
    CAPTURE(r.name);
    CHECK(test_support::same_bits(test_support::train(e, r.make, {.threads = 2}),
                                  test_support::train(e, r.make, {.threads = 1})));
  }
}

}  // namespace properties_collectives_tests
