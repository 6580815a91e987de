// moments() and set_steps(): moments of an oracle in double precision, or of another optimizer, go on in a new optimizer.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/deferred_backend.hpp"
#include "support/every_recipe.hpp"
#include "support/said.hpp"

namespace properties_moments_by_tensor_tests {
namespace {

using slamb::host_backend;
using slamb::thread_communicator;
using slamb::precision::bfloat16_momentum;
using slamb::precision::eight_bit_moments;
using slamb::precision::master_copies;
using slamb::precision::mixed;
using slamb::precision::stochastic_rounding;
using test_support::contains;
using test_support::experiment;
using test_support::recipe;
using test_support::replica;
using test_support::said_by;
using test_support::same_bits;

constexpr std::uint64_t taken = 7;
constexpr double tolerance = 2e-6;  // of max |p|

const test_support::model tensors{{300}, {0}, {17, 1}, {1}, {8192 + 5}};

template <class Backend>
Backend small_backend() {
  if constexpr (std::is_same_v<Backend, host_backend>)
    return {.threads = 1};
  else
    return {};
}

/// The elements of a tensor, of values that lie end to end.
template <class T>
std::span<const T> part_of(const std::vector<T>& all, std::size_t tensor) {
  std::size_t first = 0;
  for (std::size_t l = 0; l < tensor; ++l) first += tensors[l].size;
  return std::span(all).subspan(first, tensors[tensor].size);
}

std::vector<float> narrowed(const oracle::vector& values) { return {values.begin(), values.end()}; }

/// Writes moments that lie end to end.
void write_moments(slamb::optimizer& to, const std::vector<float>& momentum, const std::vector<float>& variance) {
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    std::ranges::copy(part_of(momentum, l), to.moments(l).momentum.begin());
    std::ranges::copy(part_of(variance, l), to.moments(l).variance.begin());
  }
}
std::vector<float> momentum_of(slamb::optimizer& of) {
  std::vector<float> all;
  for (std::size_t l = 0; l < tensors.size(); ++l)
    for (const float m : of.moments(l).momentum) all.push_back(m);
  return all;
}
std::vector<float> variance_of(slamb::optimizer& of) {
  std::vector<float> all;
  for (std::size_t l = 0; l < tensors.size(); ++l)
    for (const float v : of.moments(l).variance) all.push_back(v);
  return all;
}

/// What is taken over from an oracle.
enum class taken_over { all, only_moments, only_steps };

/// Trains an oracle, hands it over to a new optimizer after step 7, and trains both.
/// @return the largest error of parameters and moments after the last step
template <class Optimizer>
double error_after_hand_over(int world, taken_over what, const typename Optimizer::options_type& options = {}) {
  experiment e = test_support::make_experiment(tensors, 51, world, taken + 6);
  test_support::use_one_rate(e, 0.02);
  oracle::adam_family run(test_support::oracle_tensors(tensors, options.weight_decay), test_support::widened(e.start),
                          test_support::oracle_settings(options));
  for (std::size_t t = 0; t < taken; ++t) run.step(e.rates[t][0], test_support::widened(e.gradients[t]));
  const oracle::adam_family before = run;
  for (std::size_t t = taken; t < e.steps(); ++t) run.step(e.rates[t][0], test_support::widened(e.gradients[t]));

  std::vector<double> errors(static_cast<std::size_t>(world));
  slamb::run_ranks(world, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    replica mine(tensors, narrowed(before.parameters()));
    Optimizer optimizer(mine.parameters(), options, std::move(ranks),
                        small_backend<typename Optimizer::backend_type>());
    if (what != taken_over::only_steps)
      write_moments(optimizer, narrowed(before.momentum()), narrowed(before.variance()));
    if (what != taken_over::only_moments) optimizer.set_steps(taken);
    for (std::size_t t = taken; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(e.rates[t][0]);
    }
    CHECK(mine.intact());
    CHECK(optimizer.statistics().step == e.steps() - (what == taken_over::only_moments ? taken : 0));
    errors[rank] = std::max({test_support::max_relative_error(mine.values(), run.parameters()),
                             test_support::max_relative_error(momentum_of(optimizer), run.momentum()),
                             test_support::max_relative_error(variance_of(optimizer), run.variance())});
  });
  return *std::ranges::max_element(errors);
}

template <class Optimizer>
void check_hand_over() {
  for (const int world : {1, 3}) {
    CAPTURE(world);
    CHECK(error_after_hand_over<Optimizer>(world, taken_over::all) < tolerance);
    CHECK(error_after_hand_over<Optimizer>(world, taken_over::all, {.beta1 = 0.7, .max_gradient_norm = 1.0}) <
          tolerance);
  }
  // LAMB's step has the length of p for every bias correction; with weight decay they change its direction.
  CHECK(error_after_hand_over<Optimizer>(1, taken_over::only_moments, {.weight_decay = 1.0}) > 1e-3);
  CHECK(error_after_hand_over<Optimizer>(1, taken_over::only_steps, {.weight_decay = 1.0}) > 1e-3);
}

/// A model of two ranks, with an optimizer of any recipe.
struct rank_of_recipe {
  replica memory;
  test_support::made_optimizer optimizer;

  rank_of_recipe(const recipe& r, const experiment& e, thread_communicator ranks)
      : memory(e.tensors, e.start),
        optimizer(
            r.make(memory.parameters(), slamb::any_communicator<>(std::move(ranks)), test_support::one_thread())) {}
  void step(const experiment& e, std::size_t t, std::size_t rank) {
    memory.set_gradient(e.gradients[t][rank]);
    optimizer.set_mask(e.masks[t]);
    optimizer.step(e.rates[t][0]);
  }
};

experiment of_two_ranks() {
  experiment e = test_support::make_experiment(tensors, 52, 2, test_support::steps_of_recipes);
  test_support::use_one_rate(e, 0.01);
  return e;
}

/// m in ±0.1, v in [0.01, 0.02).
std::vector<float> made_up_momentum() {
  std::vector<float> all = test_support::random_parameters(8, test_support::total_size(tensors));
  for (float& m : all) m = std::clamp(0.05F * m, -0.1F, 0.1F);
  return all;
}
std::vector<float> made_up_variance() {
  std::vector<float> all(test_support::total_size(tensors));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = 0.01F + 0.0001F * static_cast<float>(i % 100);
  return all;
}

/// The phase of step t.
std::string phase_at(const recipe& r, std::uint64_t t) {
  std::string name;
  for (const test_support::expected_phase& phase : r.phases)
    if (phase.first_step <= t) name = phase.name;
  return name;
}

}  // namespace

TEST_CASE("moments by tensor: AdamW goes on from those of an oracle, with one rank and with three") {
  check_hand_over<slamb::adamw<thread_communicator>>();
}

TEST_CASE("moments by tensor: LAMB goes on from those of an oracle, with one rank and with three") {
  check_hand_over<slamb::lamb<thread_communicator>>();
}

TEST_CASE("moments by tensor: kernels, and a Backend of mixed precision, go on from an oracle too") {
  using on_kernels = slamb::adamw<thread_communicator, slamb::emulated_backend>;
  CHECK(error_after_hand_over<on_kernels>(2, taken_over::all) < tolerance);
  using of_types = slamb::adamw<thread_communicator, mixed<>>;
  CHECK(error_after_hand_over<of_types>(2, taken_over::all) < tolerance);
}

TEST_CASE("moments by tensor: an optimizer that takes over another one's has its bits from then on") {
  const experiment e = test_support::make_experiment(tensors, 53, 1, taken + 5);
  const auto check = [&](auto tag, auto options) {
    using optimizer = typename decltype(tag)::type;
    replica first(tensors, e.start), second(tensors, e.start);
    optimizer of_first(first.parameters(), options);
    for (std::size_t t = 0; t < taken; ++t) {
      first.set_gradient(e.gradients[t][0]);
      of_first.step(0.01);
    }
    optimizer of_second(second.parameters(), options);
    second.set_values(first.values());
    write_moments(of_second, momentum_of(of_first), variance_of(of_first));
    of_second.set_steps(taken);
    for (std::size_t t = taken; t < e.steps(); ++t) {
      first.set_gradient(e.gradients[t][0]);
      second.set_gradient(e.gradients[t][0]);
      of_first.step(0.01);
      of_second.step(0.01);
      CHECK(same_bits(first.values(), second.values()));
    }
    CHECK(same_bits(momentum_of(of_first), momentum_of(of_second)));
    CHECK(same_bits(variance_of(of_first), variance_of(of_second)));
  };
  check(std::type_identity<slamb::adamw<>>{}, slamb::adamw<>::options_type{});
  check(std::type_identity<slamb::lamb<>>{}, slamb::lamb<>::options_type{.weight_decay = 0.1});
  check(std::type_identity<slamb::slamb<>>{}, slamb::slamb<>::options_type{.dense_below = 10});
  check(std::type_identity<slamb::one_bit_adam<>>{}, slamb::one_bit_adam<>::options_type{.warm_up = {9}});
}

TEST_CASE("moments by tensor: bfloat16 parameters without a copy are rounded by the draws of the next step") {
  constexpr std::size_t size = 500;
  using optimizer = slamb::adamw<slamb::self_communicator, mixed<host_backend, stochastic_rounding>>;
  using bits = std::vector<std::uint16_t>;
  const std::vector<float> gradient(size, 0.5F);
  bits whole(size, 0x3F80);  // 1
  const auto tensor_of = [&](bits& data) {
    return std::vector<slamb::parameter>{
        {.data = {data.data(), slamb::parameter::bfloat16}, .gradient = gradient.data(), .size = size}};
  };
  optimizer of_whole(tensor_of(whole));
  for (std::uint64_t t = 0; t < taken; ++t) of_whole.step(1e-3);
  const bits before = whole;
  const auto next_of = [&](std::uint64_t steps) {
    bits next = before;
    optimizer run(tensor_of(next));
    std::ranges::copy(of_whole.moments(0).momentum, run.moments(0).momentum.begin());
    std::ranges::copy(of_whole.moments(0).variance, run.moments(0).variance.begin());
    run.set_steps(steps);
    run.step(1e-3);
    return next;
  };
  const bits after_same = next_of(taken), after_another = next_of(taken + 1);
  of_whole.step(1e-3);
  CHECK(after_same == whole);
  CHECK(after_another != whole);
}

TEST_CASE("moments by tensor: on a device that runs behind the host, set_steps comes after the steps before it") {
  const experiment e = test_support::make_experiment(tensors, 57, 1, 6);
  const auto check = [&](auto tag, const auto& options, std::uint64_t steps) {
    using optimizer = typename decltype(tag)::type;
    slamb::run_ranks(1, [&](thread_communicator ranks) {
      test_support::work_queue queue;
      replica mine(tensors, e.start);
      optimizer run(mine.parameters(), options, test_support::deferred_communicator(std::move(ranks)),
                    {.queue = &queue});
      for (std::size_t t = 0; t < e.steps(); ++t) {
        queue.add([&, t] { mine.set_gradient(e.gradients[t][0]); });
        run.step(0.01);
        if (t == 2) run.set_steps(steps);
      }
      CHECK(run.statistics().step == steps + 3);
      CHECK(queue.bare_waits == 0);
    });
  };
  using test_support::deferred_backend, test_support::deferred_communicator;
  using adamw = slamb::adamw<deferred_communicator, deferred_backend>;
  using zero_one_adam = slamb::zero_one_adam<deferred_communicator, slamb::sign, deferred_backend>;
  for (const std::uint64_t steps : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{20}}) {
    CAPTURE(steps);
    check(std::type_identity<adamw>{}, adamw::options_type{}, steps);
    check(std::type_identity<zero_one_adam>{},
          zero_one_adam::options_type{.compress_single_rank = true,
                                      .variance_schedule = {.freeze_step = 10, .update_scaler = 1}},
          steps);
  }
}

TEST_CASE("moments by tensor: every recipe has them, and goes on in the phase and with the collectives of the step") {
  const experiment e = of_two_ranks();
  for (const recipe& r : test_support::every_recipe())
    for (const std::uint64_t steps : {0U, 3U, 4U, 8U, 11U}) {
      if (r.keeps_part) continue;  // no rank has the moments of whole tensors
      CAPTURE(r.name);
      CAPTURE(steps);
      slamb::run_ranks(2, [&](thread_communicator ranks) {
        const auto rank = static_cast<std::size_t>(ranks.rank());
        rank_of_recipe mine(r, e, std::move(ranks));
        for (std::size_t l = 0; l < tensors.size(); ++l) {
          CHECK(mine.optimizer.moments(l).momentum.size() == tensors[l].size);
          CHECK(mine.optimizer.moments(l).variance.size() == tensors[l].size);
        }
        write_moments(mine.optimizer, made_up_momentum(), made_up_variance());
        mine.optimizer.set_steps(steps);
        CHECK(mine.optimizer.statistics().step == steps);
        CHECK(mine.optimizer.statistics().phase == phase_at(r, steps + 1));
        std::uint64_t before = mine.optimizer.statistics().traffic.total().rounds;
        for (std::size_t t = steps; t < e.steps(); ++t) {
          mine.step(e, t, rank);
          const std::uint64_t after = mine.optimizer.statistics().traffic.total().rounds;
          if (t > 0 || !r.averages_at_first) CHECK(after - before == r.rounds[t]);
          before = after;
        }
        CHECK(mine.optimizer.statistics().step == e.steps());
        for (const float p : mine.memory.values()) REQUIRE(std::isfinite(p));
        CHECK(mine.memory.intact());
      });
    }
}

TEST_CASE("moments by tensor: they keep their address, and each tensor has its own") {
  const experiment e = test_support::make_experiment(tensors, 54, 1, 1);
  replica mine(tensors, e.start), moved(tensors, e.start);
  slamb::adamw<> typed(mine.parameters());
  const std::vector<std::byte> at_start = typed.save_state();
  std::vector<const float*> places;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    const auto its = typed.moments(l);
    places.push_back(its.momentum.data());
    std::ranges::fill(its.momentum, static_cast<float>(l + 1));
    std::ranges::fill(its.variance, static_cast<float>(10 * (l + 1)));
  }
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    CHECK(std::ranges::count(typed.moments(l).momentum, static_cast<float>(l + 1)) ==
          static_cast<std::ptrdiff_t>(tensors[l].size));
    CHECK(std::ranges::count(typed.moments(l).variance, static_cast<float>(10 * (l + 1))) ==
          static_cast<std::ptrdiff_t>(tensors[l].size));
  }
  const std::vector<std::byte> written = typed.save_state();
  CHECK(written != at_start);
  std::vector<slamb::parameter::data_pointer> data;
  for (const slamb::parameter& p : moved.parameters()) data.push_back(p.data);
  slamb::optimizer any = std::move(typed);
  any.set_parameters(data);
  any.load_state(at_start);
  CHECK(any.moments(0).momentum[0] == 0.0F);
  any.load_state(written);
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    CHECK(any.moments(l).momentum.data() == places[l]);
    if (tensors[l].size > 0) CHECK(any.moments(l).momentum.back() == static_cast<float>(l + 1));
  }
}

TEST_CASE("moments by tensor: both are empty if one of them is not stored as floats") {
  const auto check = [](auto moments, bool are_there) {
    std::vector<float> data(40, 1.0F), gradient(40, 1.0F);
    slamb::adamw<slamb::self_communicator, mixed<host_backend, master_copies, decltype(moments)>> optimizer(
        std::vector<slamb::parameter>{{data.data(), gradient.data(), data.size()}});
    CHECK(optimizer.moments(0).momentum.size() == (are_there ? 40 : 0));
    CHECK(optimizer.moments(0).variance.size() == (are_there ? 40 : 0));
    CHECK_THROWS_AS(optimizer.moments(1), std::invalid_argument);
    optimizer.set_steps(5);
    optimizer.step(0.01);
    CHECK(optimizer.statistics().step == 6);
  };
  check(slamb::precision::float_moments{}, true);
  check(bfloat16_momentum{}, false);
  check(eight_bit_moments{}, false);
}

TEST_CASE("moments by tensor: set_steps finds the elements of a frozen variance that has been written before it") {
  const auto moved = [](bool writes_first) {
    constexpr std::size_t size = 40;
    std::vector<float> ends[2];
    slamb::run_ranks(2, [&](thread_communicator ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      std::vector<float> data(size, 1.0F), gradient(size, 0.5F);
      slamb::one_bit_adam<thread_communicator>::options_type options{
          .weight_decay = 0.0, .update_bound = std::numeric_limits<double>::infinity(), .warm_up = {5}};
      options.compressor.zero_aware = true;
      slamb::one_bit_adam<thread_communicator> optimizer(
          std::vector<slamb::parameter>{{data.data(), gradient.data(), size}}, options, std::move(ranks),
          {.threads = 1});
      const auto write = [&] {
        for (std::size_t i = 0; i < size; ++i) optimizer.moments(0).variance[i] = i % 2 == 0 ? 0.25F : 0.0F;
      };
      if (writes_first) write();
      optimizer.set_steps(5);
      CHECK(optimizer.statistics().phase == "compressed");
      if (!writes_first) write();
      optimizer.step(0.01);
      ends[rank] = data;
    });
    CHECK(same_bits(ends[0], ends[1]));
    std::vector<bool> changed;
    for (const float p : ends[0]) changed.push_back(p != 1.0F);
    return changed;
  };
  std::vector<bool> every_other(40, false);
  for (std::size_t i = 0; i < every_other.size(); i += 2) every_other[i] = true;
  CHECK(moved(true) == every_other);
  CHECK(moved(false) == std::vector<bool>(40, false));  // v was 0 when it was frozen: no element takes part
}

TEST_CASE("moments by tensor: local steps of 0/1 Adam begin at the parameters as they are") {
  // tau = 10 exchanges nothing, tau = 12 does.
  constexpr std::uint64_t steps = 8;
  const slamb::zero_one_adam<>::options_type options{.weight_decay = 0.1,
                                                     .update_bound = std::numeric_limits<double>::infinity(),
                                                     .variance_schedule = {.freeze_step = 6, .update_scaler = 2},
                                                     .local_schedule = {.scaler = 1, .clipper = 4}};
  const experiment e = test_support::make_experiment(tensors, 55, 2, 4);
  std::vector<std::vector<float>> last(2);
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    replica mine(tensors, std::vector<float>(e.start.size(), 9.0F));
    slamb::zero_one_adam<thread_communicator> optimizer(mine.parameters(),
                                                        {.weight_decay = options.weight_decay,
                                                         .update_bound = options.update_bound,
                                                         .variance_schedule = options.variance_schedule,
                                                         .local_schedule = options.local_schedule},
                                                        std::move(ranks), {.threads = 1});
    mine.set_values(e.start);  // as a framework loads them
    const std::vector<float> m = made_up_momentum(), v = made_up_variance();
    write_moments(optimizer, m, v);
    optimizer.set_steps(steps);
    CHECK(optimizer.statistics().phase == "local steps");
    mine.set_gradient(e.gradients[0][rank]);
    optimizer.step(0.01);
    CHECK(optimizer.statistics().traffic.total().rounds == 0);
    std::vector<double> expected(m.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double p = static_cast<double>(e.start[i]), g = static_cast<double>(e.gradients[0][rank][i]);
      const double next = 0.9 * static_cast<double>(m[i]) + 0.1 * g, root = std::sqrt(static_cast<double>(v[i]));
      expected[i] = p - 0.01 * (next / (root + options.epsilon) + 0.1 * p);
    }
    CHECK(test_support::max_relative_error(mine.values(), expected) < tolerance);
    for (std::size_t t = 1; t < 3; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      optimizer.step(0.01);
    }
    optimizer.compare_ranks();
    last[rank] = mine.values();
  });
  CHECK(same_bits(last[0], last[1]));
  CHECK(test_support::max_relative_error(last[0], e.start) < 0.5);  // at construction they were 9
}

TEST_CASE("moments by tensor: set_steps is rejected in an open step and beyond 2^53, and then nothing has changed") {
  const experiment e = test_support::make_experiment(tensors, 56, 1, 2);
  replica mine(tensors, e.start), other(tensors, e.start);
  slamb::lamb<> optimizer(mine.parameters()), untouched(other.parameters());
  CHECK(said_by<std::invalid_argument>([&] { optimizer.set_steps((std::uint64_t{1} << 53U) + 1); }) ==
        "slamb: the number of steps given to set_steps() = 9007199254740993, but it must be at most 9007199254740992");
  CHECK(said_by<std::invalid_argument>([&] { optimizer.moments(5); }) ==
        "slamb: moments() was given tensor 5, but there are 5");
  mine.set_gradient(e.gradients[0][0]);
  other.set_gradient(e.gradients[0][0]);
  optimizer.begin_step(0.01);
  CHECK(said_by<std::logic_error>([&] { optimizer.set_steps(3); }) ==
        "slamb: set_steps() was called between begin_step() and finish_step(); finish the step first");
  optimizer.finish_step();
  untouched.step(0.01);
  CHECK(same_bits(mine.values(), other.values()));
  CHECK(optimizer.save_state() == untouched.save_state());
}

TEST_CASE("moments by tensor: the next step compares the numbers of steps of the ranks, and not their histories") {
  const experiment e = of_two_ranks();
  const auto said_by_ranks = [&](std::uint64_t of_rank_1) {
    std::vector<std::string> said(2);
    slamb::run_ranks(2, [&](thread_communicator ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      replica mine(tensors, e.start);
      slamb::adamw<thread_communicator> optimizer(mine.parameters(), {}, std::move(ranks), {.threads = 1});
      optimizer.set_steps(rank == 0 ? 3 : of_rank_1);
      said[rank] = said_by<slamb::rank_mismatch_error>([&] { optimizer.step(0.01); });
    });
    CHECK(said[0] == said[1]);
    return said[0];
  };
  CHECK(said_by_ranks(3) == "nothing was thrown");
  CHECK(contains(said_by_ranks(4), "ranks differ in the number of their step: 4 on rank 0, 5 on rank 1"));

  // A rank was lost and has been started again. The others have taken steps.
  std::vector<std::byte> state;
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    const bool is_first = ranks.rank() == 0;
    replica mine(tensors, e.start);
    slamb::adamw<thread_communicator> optimizer(mine.parameters(), {}, std::move(ranks), {.threads = 1});
    for (int t = 0; t < 3; ++t) optimizer.step(0.01);
    if (is_first) state = optimizer.save_state();
  });
  slamb::run_ranks(2, [&](thread_communicator ranks) {
    const bool is_first = ranks.rank() == 0;
    replica mine(tensors, e.start);
    slamb::adamw<thread_communicator> optimizer(mine.parameters(), {}, std::move(ranks), {.threads = 1});
    if (is_first) optimizer.load_state(state);
    write_moments(optimizer, made_up_momentum(), made_up_variance());
    optimizer.set_steps(6);
    CHECK_NOTHROW(optimizer.step(0.01));
    CHECK(optimizer.statistics().step == 7);
  });
}

}  // namespace properties_moments_by_tensor_tests
