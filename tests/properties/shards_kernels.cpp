// Optimizers in shards on the CUDA backend's emulated kernels: compared with the host; captured into a graph; and the kernels of a step.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/deferred_backend.hpp"
#include "support/recorded_backend.hpp"
#include "support/thread_shards.hpp"

namespace properties_shards_kernels_tests {
namespace {

using slamb::emulated_backend;
using test_support::cut_model;
using test_support::experiment;
using test_support::largest_difference;
using test_support::maker_of;
using test_support::maker_on;
using test_support::recorded_backend;
using test_support::recorded_communicator;
using test_support::recording;
using test_support::same_bits;
using test_support::shard_place;
using test_support::trajectory;

using ranks = slamb::any_communicator<>;
using slamb::explicit_mask;
using slamb::rescaled_trust_ratio;

experiment some_experiment(std::uint64_t seed, std::size_t steps) {
  return test_support::make_experiment(test_support::random_model(seed, 4), seed, 2, steps);
}

trajectory emulated(const experiment& e, const cut_model& cuts, const maker_on<emulated_backend>& make) {
  return test_support::train_in_shards<emulated_backend>(e, cuts, make, emulated_backend{});
}

/// An optimizer on both backends with the same options.
template <template <class> class Optimizer>
void check_backends(const std::string& name, const typename Optimizer<slamb::host_backend>::options_type& options,
                    bool by_element) {
  CAPTURE(name);
  const experiment e = some_experiment(1000, 8);
  for (const std::size_t shards : {2U, 3U}) {
    CAPTURE(shards);
    const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 1001);
    const trajectory on_host = train_in_shards(e, cuts, maker_of<Optimizer<slamb::host_backend>>(options));
    const trajectory on_kernels = emulated(e, cuts, maker_of<Optimizer<emulated_backend>>(options));
    if (by_element)
      CHECK(same_bits(on_kernels, on_host));
    else
      CHECK(largest_difference(on_kernels, on_host) <= 1e-6);
  }
}

template <class Backend>
using adamw = slamb::adamw<ranks, Backend>;
template <class Backend>
using lamb = slamb::lamb<ranks, Backend>;
template <class Backend>
using sparse = slamb::slamb<ranks, slamb::random_k<>, rescaled_trust_ratio<>, Backend>;
template <class Backend>
using masked = slamb::slamb<ranks, explicit_mask, rescaled_trust_ratio<>, Backend>;
template <class Backend>
using one_bit_adam = slamb::one_bit_adam<ranks, slamb::sign, Backend>;
template <class Backend>
using one_bit_lamb = slamb::one_bit_lamb<ranks, slamb::sign, Backend>;

}  // namespace

TEST_CASE("shards: emulated kernels reach the host's parameters") {
  check_backends<adamw>("adamw", {}, true);
  check_backends<lamb>("lamb", {}, false);
  check_backends<lamb>("lamb, clipped", {.max_gradient_norm = 1.0}, false);
  check_backends<sparse>("slamb", {.local_steps = 3, .dense_below = 20, .compressor = {.k = 0.3}}, false);
  check_backends<masked>("slamb, masked", {.local_steps = 3, .dense_below = 20}, false);
  check_backends<one_bit_lamb>("one_bit_lamb, warm-up", {.warm_up = {100}}, false);
}

TEST_CASE("shards: emulated kernels have the bits of whole tensors in AdamW, and nearly those in LAMB") {
  const experiment e = some_experiment(1010, 6);
  trajectory whole_adamw = test_support::place_of(e), whole_lamb = whole_adamw;
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    CHECK(test_support::train_rank<adamw<emulated_backend>>(e, rank, {}, ranks(std::move(communicator)),
                                                            emulated_backend{}, whole_adamw));
  });
  slamb::run_ranks(2, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    CHECK(test_support::train_rank<lamb<emulated_backend>>(e, rank, {}, ranks(std::move(communicator)),
                                                           emulated_backend{}, whole_lamb));
  });
  for (const std::size_t shards : {2U, 4U}) {
    const cut_model cuts = test_support::cut_anywhere(e.tensors, shards, 1011);
    CHECK(same_bits(emulated(e, cuts, maker_of<adamw<emulated_backend>>({})), whole_adamw));
    CHECK(largest_difference(emulated(e, cuts, maker_of<lamb<emulated_backend>>({})), whole_lamb) <= 1e-6);
  }
}

// ---------------------------------------------------------------------------------------------------------------- graphs

namespace {

using recorded_shards = slamb::sharded_communicator<recorded_communicator, recorded_communicator>;

/// Trains in 2 × 2 ranks on recorded streams. Step 1 is called; if `captures`, a step is then captured once, and replayed for all others.
/// In some steps the gradient of one rank is not finite.
test_support::sharded_trajectory train_recorded(const experiment& e, const cut_model& cuts,
                                                const maker_on<recorded_backend>& make, bool captures,
                                                std::vector<std::uint64_t>& skipped) {
  test_support::sharded_trajectory reached(e, cuts);
  skipped.assign(4, 0);
  test_support::thread_shards groups(2, 2);
  slamb::run_ranks(4, [&](const slamb::thread_communicator& thread) {
    const auto number = static_cast<std::size_t>(thread.rank());
    const shard_place at{number / 2, number % 2};
    recording graph;
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    test_support::replica mine(test_support::shard_of(e.tensors, cuts, at.shard),
                               test_support::taken(e.start, elements));
    recorded_shards all(
        recorded_communicator(groups.exchange(at.shard).communicator(static_cast<int>(at.replica)), graph),
        recorded_communicator(groups.shard_group(at.replica).communicator(static_cast<int>(at.shard)), graph));
    test_support::made_optimizer run = make(mine.parameters(), ranks(std::move(all)), recorded_backend{.to = &graph});
    const double rate = 0.01;
    bool is_captured = false;
    for (std::size_t t = 0; t < e.steps(); ++t) {
      std::vector<float> gradient = test_support::taken(e.gradients[t][at.replica], elements);
      if (t % 4 == 3 && number == t / 4) gradient[gradient.size() / 2] = std::nanf("");
      mine.set_gradient(gradient);
      if (!captures || t == 0) {
        run.step(slamb::device_learning_rates{&rate});
      } else {
        if (!is_captured) {
          graph.begin();
          run.step(slamb::device_learning_rates{&rate});
          graph.end();
          is_captured = true;
        }
        graph.replay();
      }
      reached.at(t, at) = mine.values();
    }
    skipped[number] = run.statistics().skipped_steps;
  });
  return reached;
}

void check_captured(const std::string& name, const maker_on<recorded_backend>& make) {
  CAPTURE(name);
  experiment e = some_experiment(1020, 14);
  for (test_support::tensor_spec& l : e.tensors) l.options.group = 0;
  const cut_model cuts = test_support::cut_anywhere(e.tensors, 2, 1021);
  std::vector<std::uint64_t> skipped, skipped_in_graph;
  const trajectory called = train_recorded(e, cuts, make, false, skipped).whole();
  CHECK(same_bits(train_recorded(e, cuts, make, true, skipped_in_graph).whole(), called));
  CHECK(skipped == std::vector<std::uint64_t>(4, 3));
  CHECK(skipped_in_graph == skipped);
}

}  // namespace

TEST_CASE("shards: captured steps have the bits of called ones, and skip the same steps on all ranks") {
  check_captured("adamw", maker_of<adamw<recorded_backend>>({}));
  check_captured("lamb", maker_of<lamb<recorded_backend>>({}));
  check_captured("lamb, clipped", maker_of<lamb<recorded_backend>>({.max_gradient_norm = 1.0}));
  check_captured("one_bit_adam", maker_of<one_bit_adam<recorded_backend>>({.warm_up = {1}}));
  check_captured("one_bit_lamb", maker_of<one_bit_lamb<recorded_backend>>({.warm_up = {1}}));
}

// --------------------------------------------------------------------------------------------------------------- kernels

namespace {

/// Kernels, uploads and downloads of step 3.
struct counts {
  std::size_t kernels = 0, uploads = 0, downloads = 0;
  friend bool operator==(const counts&, const counts&) = default;
};

/// Of each of 2 × 2 ranks, over this number of tensors.
std::vector<counts> counts_of(std::size_t tensors, const maker_on<recorded_backend>& make) {
  const experiment e =
      test_support::make_experiment(test_support::model(tensors, {.size = 1200 / tensors}), 1030, 2, 3);
  cut_model cuts;
  for (const test_support::tensor_spec& l : e.tensors) cuts.push_back(test_support::cut_at({l.size / 2, l.size}));
  std::vector<counts> all(4);
  test_support::thread_shards(2, 2).run([&](test_support::shards_of_threads communicator, shard_place at) {
    recording device;
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    test_support::replica mine(test_support::shard_of(e.tensors, cuts, at.shard),
                               test_support::taken(e.start, elements));
    test_support::made_optimizer run =
        make(mine.parameters(), ranks(std::move(communicator)), recorded_backend{.to = &device});
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(test_support::taken(e.gradients[t][at.replica], elements));
      device.calls = {};
      device.calls.is_on = true;
      run.step(0.01);
    }
    using bench::count_of, bench::device_call;
    all[at.replica * 2 + at.shard] = {count_of(device.calls.calls, device_call::kernel),
                                      count_of(device.calls.calls, device_call::upload),
                                      count_of(device.calls.calls, device_call::download)};
  });
  return all;
}

}  // namespace

TEST_CASE("shards: kernels of a step are few, as many for any number of tensors, and the host waits for none") {
  const std::vector<std::pair<maker_on<recorded_backend>, std::size_t>> recipes{
      {maker_of<adamw<recorded_backend>>({}), 6},  // and at most so many with whole tensors
      {maker_of<lamb<recorded_backend>>({}), 8},
      {maker_of<one_bit_lamb<recorded_backend>>({.warm_up = {1}}), 10}};
  for (const auto& [make, whole] : recipes) {
    CAPTURE(whole);
    const std::vector<counts> few = counts_of(3, make), many = counts_of(300, make);
    for (std::size_t rank = 0; rank < few.size(); ++rank) {
      CHECK(few[rank].kernels <= whole + 4);
      CHECK(few[rank].kernels >= whole);
      CHECK(few[rank].uploads == 0);
      CHECK(few[rank].downloads == 0);
      CHECK(few[rank] == few[0]);
      CHECK(many[rank] == few[0]);
    }
  }
}

// ------------------------------------------------------------------------------------------------- a device behind the host

namespace {

using test_support::deferred_backend;
using test_support::deferred_communicator;
using deferred_ranks = slamb::any_communicator<test_support::deferred_stream>;
using deferred_adam = slamb::zero_one_adam<deferred_ranks, slamb::sign, deferred_backend>;

struct late_outcome {
  std::vector<std::string> said = std::vector<std::string>(4);  // [rank]
  std::vector<std::vector<float>> reached = std::vector<std::vector<float>>(4);
};

/// Takes `steps` steps; from step `differs` on the ranks of shard 1 have another learning rate.
late_outcome train_late(const experiment& e, const cut_model& cuts, std::size_t steps, std::size_t differs) {
  late_outcome all;
  test_support::thread_shards groups(2, 2);
  slamb::run_ranks(4, [&](const slamb::thread_communicator& thread) {
    const auto number = static_cast<std::size_t>(thread.rank());
    const shard_place at{number / 2, number % 2};
    const std::vector<std::size_t> elements = test_support::elements_of(e.tensors, cuts, at.shard);
    test_support::replica mine(test_support::shard_of(e.tensors, cuts, at.shard),
                               test_support::taken(e.start, elements));
    mine.set_gradient(test_support::taken(e.gradients[0][at.replica], elements));  // the queue reads it later
    test_support::work_queue queue;
    deferred_communicator replicas(groups.exchange(at.shard).communicator(static_cast<int>(at.replica)));
    deferred_communicator group(groups.shard_group(at.replica).communicator(static_cast<int>(at.shard)));
    deferred_adam run(mine.parameters(), {}, deferred_ranks(slamb::sharded_communicator(replicas, group)),
                      deferred_backend{.queue = &queue});
    try {
      for (std::size_t t = 0; t < steps; ++t) run.step(t >= differs && at.shard == 1 ? 0.02 : 0.01);
      run.compare_ranks();
    } catch (const slamb::rank_mismatch_error& error) {
      all.said[number] = error.what();
    }
    queue.run_to(test_support::work_queue::all);
    all.reached[number] = mine.values();
  });
  return all;
}

}  // namespace

TEST_CASE("shards: a device behind the host skips all steps from one in which shards differ, until the host knows") {
  const experiment e = some_experiment(1040, 1);
  const cut_model cuts = test_support::cut_anywhere(e.tensors, 2, 1041);
  const late_outcome twin = train_late(e, cuts, 4, 100);
  for (const std::string& said : twin.said) CHECK(said.empty());
  for (const std::size_t steps : {5U, 20U}) {
    const late_outcome late = train_late(e, cuts, steps, 4);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CAPTURE(late.said[rank]);
      CHECK(late.said[rank].starts_with("slamb: ranks differ in the learning rate"));
      CHECK(late.said[rank] == late.said[0]);
      CHECK(same_bits(std::span<const float>(late.reached[rank]), twin.reached[rank]));
    }
  }
}

}  // namespace properties_shards_kernels_tests
