// Legal but rare cases: scales, rates and errors at the limits of floats, empty payloads, more ranks than elements, and
// optimizers that are moved or changed during a training.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/archetype_policies.hpp"
#include "support/faulty_training.hpp"

namespace properties_edge_cases_tests {
namespace {

using slamb::scale_sharing;
using slamb::thread_communicator;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::one_thread;
using test_support::replica;
using test_support::trajectory;

using one_bit_lamb = slamb::one_bit_lamb<thread_communicator>;
using zero_one = slamb::zero_one_adam<thread_communicator>;
using thrifty_adamw = slamb::adamw<slamb::sign, slamb::residual<slamb::bfloat16>, thread_communicator>;
using bernoulli = slamb::random_k<slamb::sampling::bernoulli>;
using bytewise = slamb::slamb<thread_communicator, slamb::chain<bernoulli, slamb::int8>>;
using told = slamb::slamb<thread_communicator, slamb::chain<slamb::explicit_mask, slamb::int8>>;
using largest = slamb::slamb<thread_communicator, slamb::top_k>;

bool all_finite(const trajectory& reached) {
  for (const auto& ranks : reached)
    for (const auto& values : ranks)
      for (const float x : values)
        if (!std::isfinite(x)) return false;
  return true;
}

/// Trains, and returns rank 0's statistics too.
template <class Optimizer>
std::pair<trajectory, slamb::statistics> train_and_ask(const experiment& e,
                                                       const typename Optimizer::options_type& options) {
  trajectory reached(e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world)));
  slamb::statistics said;
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options, std::move(communicator), one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(e.rates[t]);
      reached[t][rank] = mine.values();
    }
    if (rank == 0) said = run.statistics(true);
  });
  return {reached, said};
}

/// Multiplies elements [first, last) of all gradients of steps [from, to).
void scale_gradients(experiment& e, std::size_t from, std::size_t to, std::size_t first, std::size_t last, float by) {
  for (std::size_t t = from; t < to; ++t)
    for (auto& gradient : e.gradients[t])
      for (std::size_t j = first; j < last; ++j) gradient[j] *= by;
}

}  // namespace

TEST_CASE("edge cases: 1-bit LAMB continues if the momentum of a tensor almost vanishes in the warm-up, and returns") {
  // After a thousand steps without a gradient the momentum is four times the smallest float, and no longer changes.
  experiment e = make_experiment({{60}, {40}}, 170, 2, 1060);
  test_support::use_one_rate(e, 1e-3);
  scale_gradients(e, 1, 1052, 60, 100, 0.0F);
  for (const scale_sharing scales : {scale_sharing::fused, scale_sharing::per_tensor}) {
    const auto [reached, said] =
        train_and_ask<one_bit_lamb>(e, {.epsilon = 1e-3, .warm_up = {1050}, .compressor = {.scales = scales}});
    CHECK(said.phase == "compressed");
    CHECK(said.step == 1060);
    CHECK(said.skipped_steps == 0);
    CHECK(all_finite(reached));
    CHECK(test_support::ranks_agree(reached, 1059));
  }
}

TEST_CASE("edge cases: 1-bit LAMB continues after gradients whose squares are 0") {
  experiment e = make_experiment({{300}, {200}}, 171, 2, 8);
  scale_gradients(e, 0, 5, 300, 500, 1e-40F);
  const auto [reached, said] = train_and_ask<one_bit_lamb>(e, {.epsilon = 1e-3, .warm_up = {4}});
  CHECK(said.step == 8);
  CHECK(all_finite(reached));
}

TEST_CASE("edge cases: 0/1 Adam keeps its momentum finite at learning rates whose inverse overflows") {
  for (const double factor : {1e-38, 1e-37, 1e-30, 0.0}) {
    CAPTURE(factor);
    model tensors{{300}, {300}};
    tensors[1].options.learning_rate_factor = factor;
    const experiment e = make_experiment(tensors, 172, 2, 12);
    const auto [reached, said] = train_and_ask<zero_one>(
        e, {.variance_schedule = {.freeze_step = 3}, .compressor = {.scales = scale_sharing::per_tensor}});
    CHECK(said.phase == "local steps");
    CHECK(std::isfinite(said.norm.momentum));
    CHECK(all_finite(reached));
  }
}

TEST_CASE("edge cases: an error that is rounded up in storage can still be sent") {
  // The square of the largest signals is finite. Rounded to 8 bits they are 2^64, whose square is not.
  experiment e = make_experiment({{400'000}}, 173, 2, 6);
  for (const float spike : {1.8445e19F, 1.84e19F, 1.8e19F, -1.8446e19F}) {
    CAPTURE(spike);
    e.gradients[1][0][7] = spike;
    const auto [reached, said] = train_and_ask<thrifty_adamw>(e, {});
    CHECK(said.skipped_steps <= 1);
    CHECK(said.step + said.skipped_steps == 6);
    CHECK(all_finite(reached));
    CHECK(test_support::ranks_agree(reached, 5));
  }
}

TEST_CASE("edge cases: everything stays finite with gradients of every magnitude") {
  for (const float magnitude : {1e-45F, 1e-38F, 1e-30F, 1e-19F, 1e10F, 1e15F, 1e18F}) {
    CAPTURE(magnitude);
    experiment e = make_experiment({{300}, {17}, {33, 1}}, 174, 3, 8);
    scale_gradients(e, 0, 8, 0, 350, magnitude);
    CHECK(all_finite(train_and_ask<one_bit_lamb>(e, {.warm_up = {3}}).first));
    CHECK(all_finite(train_and_ask<thrifty_adamw>(e, {}).first));
    CHECK(all_finite(train_and_ask<bytewise>(e, {.dense_below = 100}).first));
    CHECK(all_finite(train_and_ask<largest>(e, {.dense_below = 100}).first));
    CHECK(all_finite(train_and_ask<zero_one>(e, {.variance_schedule = {.freeze_step = 3}}).first));
  }
}

TEST_CASE("edge cases: 64 ranks exchange one element, and ranks with an empty chunk have the same bits") {
  const experiment e = make_experiment({{1}}, 175, 64, 5);
  const auto check = [&e]<class Optimizer>(std::type_identity<Optimizer> /*type*/,
                                           const typename Optimizer::options_type& options) {
    const auto [reached, said] = train_and_ask<Optimizer>(e, options);
    CHECK(said.step == 5);
    CHECK(test_support::ranks_agree(reached, 4));
    CHECK(all_finite(reached));
    CHECK(reached[4][0][0] != e.start[0]);
  };
  check(std::type_identity<one_bit_lamb>{}, {.warm_up = {2}, .compressor = {.scales = scale_sharing::per_tensor}});
  check(std::type_identity<zero_one>{}, {.variance_schedule = {.freeze_step = 3}});
  check(std::type_identity<thrifty_adamw>{}, {});
  check(std::type_identity<largest>{}, {.local_steps = 1, .dense_below = 0});
  check(std::type_identity<bytewise>{}, {.local_steps = 1, .dense_below = 0});
}

TEST_CASE("edge cases: an empty encoded payload equals no payload") {
  // Selects every 2^32nd element, of 9000.
  const experiment e = make_experiment({{9000}, {300}}, 176, 3, 6);
  const auto nothing = train_and_ask<slamb::slamb<test_support::nothing_ever, thread_communicator>>(
      e, {.local_steps = 2, .dense_below = 0});
  const auto encoded =
      train_and_ask<bytewise>(e, {.local_steps = 2, .dense_below = 0, .compressor = {{.k = 0x1p-32}, {}}});
  CHECK(test_support::same_bits(encoded.first, nothing.first));
  CHECK(encoded.second.step == 6);
}

TEST_CASE("edge cases: an encoded payload of several tiles, most of it from dense tensors") {
  const experiment e = make_experiment({{20'000, 1}, {9000}, {8193, 1}}, 177, 2, 4);
  const auto [reached, said] = train_and_ask<bytewise>(e, {.local_steps = 4, .dense_below = 0});
  CHECK(test_support::ranks_agree(reached, 0));
  CHECK(all_finite(reached));
  CHECK(said.step == 4);
}

TEST_CASE(
    "edge cases: with a data-dependent sparsifier, a gradient that is not finite on the leader or another rank skips "
    "the step on all ranks") {
  const experiment e = make_experiment({{9000}, {300}, {17, 1}}, 178, 2, 4);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30F})
    for (const std::size_t when : {std::size_t{0}, std::size_t{1}, std::size_t{3}})  // the leaders are ranks 0, 1 and 1
      for (const std::size_t place : {std::size_t{0}, std::size_t{9100}, std::size_t{9316}}) {
        CAPTURE(value);
        CAPTURE(when);
        CAPTURE(place);
        test_support::check_skipped<largest>(e, {.dense_below = 100}, value, place, when);
      }
}

TEST_CASE("edge cases: a chain with an explicit mask, set at each step, stays finite") {
  experiment e = make_experiment({{9000}, {300}}, 179, 2, 3);
  std::atomic<int> wrong{0};
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    told run(mine.parameters(), {.dense_below = 0}, std::move(communicator), one_thread());
    CHECK_THROWS_AS(run.step(0.1), std::invalid_argument);
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.compressor().sparsifier.set(e.masks[t]);
      run.step(e.rates[t]);
      for (const float x : mine.values())
        if (!std::isfinite(x)) ++wrong;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("edge cases: optimizers with codes continue after a move, and read gradients at new addresses") {
  const experiment e = make_experiment({{9000}, {300}, {0}, {33, 1}}, 180, 2, 8);
  const auto check = [&e]<class Optimizer>(std::type_identity<Optimizer> /*type*/,
                                           const typename Optimizer::options_type& options) {
    const trajectory expected = train_and_ask<Optimizer>(e, options).first;
    std::atomic<int> wrong{0};
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      std::vector<Optimizer> runs;
      runs.emplace_back(mine.parameters(), options, std::move(communicator), one_thread());
      for (std::size_t t = 0; t < e.steps(); ++t) {
        std::vector<float> gradient = e.gradients[t][rank];  // at another place at each step
        std::size_t first = 0;
        for (std::size_t i = 0; i < e.tensors.size(); ++i) {
          runs.back().set_gradient(i, gradient.data() + first);
          first += e.tensors[i].size;
        }
        runs.back().step(e.rates[t]);
        if (!test_support::same_bits(mine.values(), expected[t][rank])) ++wrong;
        Optimizer next(std::move(runs.back()));
        runs.clear();
        runs.push_back(std::move(next));
      }
    });
    CHECK(wrong == 0);
  };
  check(std::type_identity<one_bit_lamb>{}, {.warm_up = {3}});
  check(std::type_identity<zero_one>{}, {.variance_schedule = {.freeze_step = 3}});
  check(std::type_identity<thrifty_adamw>{}, {});
  check(std::type_identity<bytewise>{}, {.dense_below = 100});
  check(std::type_identity<largest>{}, {.dense_below = 100});
}

TEST_CASE("edge cases: wrong learning rates are rejected in every phase, and nothing changes") {
  const experiment e = make_experiment({{9000}, {300}}, 181, 1, 10);
  const auto check = [&e]<class Optimizer>(std::type_identity<Optimizer> /*type*/,
                                           const typename Optimizer::options_type& options) {
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options, slamb::thread_group(1).communicator(0), one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][0]);
      const auto state = run.save_state();
      const std::vector<float> values = mine.values();
      for (const double rate : {-1.0, 1e39, std::numeric_limits<double>::quiet_NaN()})
        CHECK_THROWS_AS(run.step(rate), std::invalid_argument);
      CHECK_THROWS_AS(run.step(std::vector<double>{}), std::invalid_argument);
      CHECK_THROWS_AS(run.step(std::vector<double>{0.1, 0.1}), std::invalid_argument);
      CHECK(run.save_state() == state);
      CHECK(test_support::same_bits(mine.values(), values));
      run.step(e.rates[t]);
    }
  };
  check(std::type_identity<one_bit_lamb>{}, {.compress_single_rank = true, .warm_up = {3}});
  check(std::type_identity<zero_one>{}, {.compress_single_rank = true,
                                         .variance_schedule = {.freeze_step = 3, .update_scaler = 1},
                                         .local_schedule = {.scaler = 1, .clipper = 2}});
  check(std::type_identity<thrifty_adamw>{}, {.compress_single_rank = true});
  check(std::type_identity<bytewise>{}, {});
}

TEST_CASE("edge cases: an allocator that fails on one rank ends its peers at once, and nothing is freed twice") {
  const experiment e = make_experiment({{300}}, 182, 2, 1);
  std::atomic<int> allocated{0}, freed{0}, failed{0};
  slamb::allocator failing{.allocate = [](std::size_t) -> void* { throw std::bad_alloc(); },
                           .deallocate = [&](void*, std::size_t) { ++freed; }};
  const slamb::allocator plain = one_thread().memory;
  slamb::allocator counted{.allocate =
                               [&](std::size_t bytes) {
                                 ++allocated;
                                 return plain.allocate(bytes);
                               },
                           .deallocate =
                               [&](void* memory, std::size_t bytes) {
                                 ++freed;
                                 plain.deallocate(memory, bytes);
                               }};
  slamb::thread_group group(2);
  CHECK_THROWS_AS(slamb::run_ranks(group,
                                   [&](thread_communicator communicator) {
                                     const bool fails = communicator.rank() == 1;
                                     replica mine(e.tensors, e.start);
                                     slamb::host_backend backend = one_thread();
                                     backend.memory = fails ? failing : counted;
                                     try {
                                       zero_one run(mine.parameters(), {.variance_schedule = {.freeze_step = 0}},
                                                    std::move(communicator), backend);
                                       run.step(0.1);
                                     } catch (...) {
                                       ++failed;
                                       throw;
                                     }
                                   }),
                  std::exception);
  CHECK(failed == 2);
  CHECK(allocated == 1);
  CHECK(freed == 1);
}

}  // namespace properties_edge_cases_tests
