// Failures in trainings: gradients that are not finite, failing communicators, missing ranks.
//
// A thread_group that has failed stays failed, so a run cannot go on with it. To show that a failed step leaves all state
// unchanged, the tests use their own communicator, which fails once on all ranks and then works again.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/faulty_training.hpp"
#include "support/watching_communicators.hpp"

namespace faults_training_tests {
namespace {

using slamb::communicator_error;
using slamb::thread_communicator;
using slamb::thread_group;
using fault_kind = slamb::thread_group::fault::kind_type;
using test_support::check_failure_at_each_round;
using test_support::check_overflows;
using test_support::check_skipped;
using test_support::experiment;
using test_support::failed_step;
using test_support::fault_model;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;
using test_support::rounds_at_construction;
using test_support::rounds_before_first_step;
using test_support::same_bits;
using test_support::train_through_failures;
using test_support::train_until_failure;
using test_support::trajectory;

using adamw = slamb::adamw<thread_communicator>;
using lamb = slamb::lamb<thread_communicator>;
template <class Compressor>
using sparse = slamb::slamb<thread_communicator, Compressor>;
using blend =
    slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::blend>>;
using bernoulli = slamb::random_k<slamb::sampling::bernoulli>;

}  // namespace

TEST_CASE("overflow: a step with a gradient that is not finite is skipped by all ranks of LAMB and AdamW") {
  check_overflows<lamb>({});
  check_overflows<lamb>({.max_gradient_norm = 1.0});
  check_overflows<adamw>({});
}

TEST_CASE("overflow: a step with a gradient that is not finite is skipped by all ranks of SLAMB, with its ages") {
  check_overflows<sparse<slamb::random_k<>>>({.local_steps = 2, .dense_below = 20});
  check_overflows<sparse<slamb::random_k<>>>({.dense_below = 20, .compressor = {.block = 16}});
  check_overflows<sparse<bernoulli>>({.local_steps = 2, .dense_below = 20});
  check_overflows<sparse<slamb::explicit_mask>>({.local_steps = 2, .dense_below = 0});
  check_overflows<blend>({.local_steps = 2, .dense_below = 20});
}

TEST_CASE("overflow: the flag reaches the other ranks even if nothing is selected") {
  experiment e = make_experiment({{9000}, {300}}, 120, 2, 4);
  for (auto& mask : e.masks) mask.assign(mask.size(), 0);
  check_skipped<sparse<slamb::explicit_mask>>(e, {.dense_below = 0}, std::numeric_limits<float>::quiet_NaN(), 4000, 2);
}

TEST_CASE("overflow: gradients whose squares are just finite are no overflow") {
  experiment e = make_experiment({{300}}, 121, 2, 2);
  for (auto& ranks : e.gradients)
    for (auto& gradient : ranks) gradient[7] = 1e19F;
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    sparse<slamb::random_k<>> run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < 2; ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(0.01);
    }
    CHECK(run.statistics().step == 2);
    for (const float x : mine.values()) CHECK(std::isfinite(x));
  });
}

TEST_CASE("overflow: LAMB without the check takes the step") {
  for (const int world : {1, 2}) {
    experiment e = make_experiment({{300}, {40}}, 122, world, 2);
    e.gradients[1].back()[50] = std::numeric_limits<float>::infinity();
    const trajectory reached = test_support::train<lamb>(e, {.skip_non_finite = false});
    CHECK(test_support::ranks_agree(reached, 1));
    CHECK(std::isnan(reached[1][0][50]));
    for (std::size_t i = 300; i < 340; ++i) {  // the other tensor continues
      CHECK(std::isfinite(reached[1][0][i]));
      CHECK(reached[1][0][i] != reached[0][0][i]);
    }
    const trajectory looking = test_support::train<lamb>(e, {});
    CHECK(test_support::same_bits(looking[1][0], looking[0][0]));
  }
}

TEST_CASE("failure: a communicator that throws in any round fails the step on all ranks and changes nothing") {
  check_failure_at_each_round<lamb>({});
  check_failure_at_each_round<lamb>({.max_gradient_norm = 1.0});
  check_failure_at_each_round<adamw>({});
  check_failure_at_each_round<sparse<slamb::random_k<>>>({.local_steps = 2, .dense_below = 20});
  check_failure_at_each_round<sparse<slamb::explicit_mask>>({.local_steps = 2, .dense_below = 0});
  check_failure_at_each_round<sparse<bernoulli>>({.local_steps = 1});
}

TEST_CASE("failure: after a step that failed on all ranks, training continues unchanged") {
  const experiment e = make_experiment(fault_model(), 123, 2, 5);
  const auto check = [&e](const test_support::optimizer_maker& make) {
    const trajectory expected = test_support::train(e, make);
    const std::uint64_t construction = rounds_at_construction(make);
    for (std::uint64_t first = construction; first < construction + 12; ++first) {
      int failures = 0;
      // Once, twice in a row, and once more later.
      const trajectory reached = train_through_failures(e, make, {first, first + 1, first + 4}, failures);
      CAPTURE(first);
      CHECK(same_bits(reached, expected));
      if (first < construction + 4) CHECK(failures >= 2);
    }
  };
  using ranks = slamb::any_communicator<>;
  using test_support::maker_of;
  check(maker_of<slamb::lamb<ranks>>({}));
  check(maker_of<slamb::lamb<ranks>>({.max_gradient_norm = 1.0}));
  check(maker_of<slamb::adamw<ranks>>({}));
  check(maker_of<slamb::slamb<ranks>>({.local_steps = 2, .dense_below = 20}));
  check(maker_of<slamb::slamb<ranks, bernoulli>>({.local_steps = 2, .dense_below = 20}));
  check(maker_of<slamb::slamb<ranks, slamb::explicit_mask>>({.local_steps = 2, .dense_below = 0}));
}

TEST_CASE("failure: a new group continues from the parameters of a failed one") {
  const experiment e = make_experiment(fault_model(), 124, 3, 3);
  thread_group broken(3);
  broken.inject({.rank = 1, .round = rounds_before_first_step<adamw>() + 1, .kind = fault_kind::throws});
  const auto seen = train_until_failure<adamw>(e, {.beta1 = 0.0, .beta2 = 0.0, .bias_correction = false}, broken);
  // A new optimizer equals the old one, because it keeps no memory of earlier steps.
  experiment rest = e;
  rest.start = seen[0].values;
  rest.gradients.erase(rest.gradients.begin());
  rest.rates.erase(rest.rates.begin());
  rest.masks.erase(rest.masks.begin());
  const auto reached = test_support::train<adamw>(rest, {.beta1 = 0.0, .beta2 = 0.0, .bias_correction = false});
  const auto expected = test_support::train<adamw>(e, {.beta1 = 0.0, .beta2 = 0.0, .bias_correction = false});
  CHECK(same_bits(reached, trajectory(expected.begin() + 1, expected.end())));
}

TEST_CASE("failure: a rank that stalls in a step ends in an exception on all ranks within the timeout") {
  using namespace std::chrono_literals;
  const experiment e = make_experiment(fault_model(), 125, 3, 2);
  const auto check = [&e]<class Optimizer>(Optimizer* /*type*/) {
    thread_group group(3, {.timeout = 3s});
    group.inject({.rank = 2, .round = rounds_before_first_step<Optimizer>(), .kind = fault_kind::stalls});
    const auto begin = std::chrono::steady_clock::now();
    const auto seen = train_until_failure<Optimizer>(e, {}, group);
    CHECK(std::chrono::steady_clock::now() - begin < 60s);
    for (const failed_step& mine : seen) {
      CHECK(mine.threw);
      CHECK(mine.counted == 0);
      CHECK(test_support::same_bits(mine.values, e.start));
    }
  };
  check(static_cast<lamb*>(nullptr));
  check(static_cast<sparse<slamb::random_k<>>*>(nullptr));
}

TEST_CASE("failure: a rank that throws between steps, or stops coming, ends the others") {
  const experiment e = make_experiment(fault_model(), 126, 3, 4);
  for (const bool throws : {true, false}) {
    std::atomic<int> failed{0};
    const auto run_all = [&] {
      slamb::run_ranks(3, [&](thread_communicator communicator) {
        const int rank = communicator.rank();
        replica mine(e.tensors, e.start);
        sparse<slamb::random_k<>> run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
        for (std::size_t t = 0; t < e.steps(); ++t) {
          if (rank == 1 && t == 2) {
            if (throws) throw std::runtime_error("out of data");
            return;
          }
          const std::vector<float> before = mine.values();
          try {
            run.step(0.01);
          } catch (const communicator_error&) {
            ++failed;
            CHECK(test_support::same_bits(mine.values(), before));
            CHECK(run.statistics().step == 2);
            throw;
          }
        }
      });
    };
    if (throws) CHECK_THROWS_WITH_AS(run_all(), "out of data", std::runtime_error);
    if (!throws) CHECK_THROWS_AS(run_all(), communicator_error);
    CHECK(failed == 2);
  }
}

TEST_CASE("failure: a step whose sum comes back as NaN is skipped by all ranks") {
  const experiment e = make_experiment(fault_model(), 127, 2, 3);
  thread_group group(2);
  group.inject({.rank = 1, .round = rounds_before_first_step<lamb>() + 1, .kind = fault_kind::corrupts});
  slamb::run_ranks(group, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    lamb run(mine.parameters(), {}, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      run.step(0.01);
    }
    CHECK(run.statistics().step == 2);
    CHECK(run.statistics().skipped_steps == 1);
  });
}

}  // namespace faults_training_tests
