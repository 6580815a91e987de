// Gradients and sums that are not finite: what counts as an overflow, and who is told. properties/transaction.cpp shows that a step
// that is skipped or fails changes nothing.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/faulty_training.hpp"

namespace faults_training_tests {
namespace {

using slamb::thread_communicator;
using slamb::thread_group;
using fault_kind = slamb::thread_group::fault::kind_type;
using test_support::check_skipped;
using test_support::experiment;
using test_support::fault_model;
using test_support::make_experiment;
using test_support::replica;
using test_support::rounds_before_first_step;
using test_support::trajectory;

using lamb = slamb::lamb<thread_communicator>;
template <class Compressor>
using sparse = slamb::slamb<thread_communicator, Compressor>;

}  // namespace

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
