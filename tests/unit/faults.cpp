// What goes wrong while training: gradients that are not finite, communicators that fail, ranks that do not come.
//
// A thread_group that has failed stays failed, so a run cannot go on with it; that a failed step has left all state as
// it was is shown with a communicator of the tests' own, which fails once on all ranks and then works on.
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
#include "support/watching_communicators.hpp"

namespace {

using slamb::communicator_error;
using slamb::fault_kind;
using slamb::thread_communicator;
using slamb::thread_group;
using test_support::experiment;
using test_support::make_experiment;
using test_support::model;
using test_support::replica;
using test_support::same_bits;
using test_support::trajectory;

using adamw = slamb::adamw<thread_communicator>;
using lamb = slamb::lamb<thread_communicator>;
template <class Compressor>
using sparse = slamb::slamb<thread_communicator, Compressor>;
using blend =
    slamb::slamb<thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<slamb::rescaling::blend>>;
using bernoulli = slamb::random_k<slamb::sampling::bernoulli>;

constexpr std::uint64_t rounds_at_construction = 2;

model fault_model() { return {{17}, {9000}, {0}, {33, 1}, {300}}; }

template <class Optimizer>
void set_mask([[maybe_unused]] Optimizer& run, [[maybe_unused]] const std::vector<std::uint8_t>& mask) {
  if constexpr (requires { run.compressor().set(mask); }) run.compressor().set(mask);
}

// -------------------------------------------------------------------------------------------------- overflowed gradients

/// Trains with `value` at one place of one rank's gradient in an extra step before step `when`, which must be as if it
/// had never been.
template <class Optimizer>
void check_skipped(const experiment& e, const typename Optimizer::options_type& options, float value, std::size_t place,
                   std::size_t when) {
  const trajectory expected = test_support::train<Optimizer>(e, options);
  trajectory reached(e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world)));
  std::atomic<int> wrong{0};
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const bool culprit = communicator.rank() == communicator.size() - 1;
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      if (t == when) {
        std::vector<float> gradient = e.gradients[(t + 1) % e.steps()][rank];
        if (culprit) gradient[place] = value;
        mine.set_gradient(gradient);
        const std::vector<float> before = mine.values();
        const slamb::norms norm = run.statistics(true).norm;
        for (int again = 0; again < 2; ++again) {
          set_mask(run, e.masks[(t + 1) % e.steps()]);
          run.step(e.rates[t]);
        }
        const slamb::statistics after = run.statistics(true);
        if (!test_support::same_bits(mine.values(), before) || !mine.intact()) ++wrong;
        if (after.step != t || after.skipped_steps != 2) ++wrong;
        if (after.norm.momentum != norm.momentum || after.norm.variance != norm.variance) ++wrong;
      }
      mine.set_gradient(e.gradients[t][rank]);
      set_mask(run, e.masks[t]);
      run.step(e.rates[t]);
      reached[t][rank] = mine.values();
    }
    if (run.statistics().step != e.steps() || run.statistics().skipped_steps != 2) ++wrong;
  });
  CHECK(wrong == 0);
  CHECK(same_bits(reached, expected));
}

template <class Optimizer>
void check_overflows(const typename Optimizer::options_type& options) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
  constexpr float square_overflows = 1e30F;
  for (const int world : {1, 2, 3}) {
    const experiment e = make_experiment(fault_model(), static_cast<std::uint64_t>(100 + world), world, 4);
    const std::size_t last = e.start.size() - 1;
    for (const float value : {not_a_number, infinity, -infinity, square_overflows, -square_overflows}) {
      CAPTURE(world);
      CAPTURE(value);
      check_skipped<Optimizer>(e, options, value, 5000, 2);
    }
    for (const std::size_t place : {std::size_t{0}, std::size_t{16}, last}) {
      CAPTURE(world);
      CAPTURE(place);
      check_skipped<Optimizer>(e, options, not_a_number, place, 0);
      check_skipped<Optimizer>(e, options, square_overflows, place, 3);
    }
  }
}

// ------------------------------------------------------------------------------------------------ failing communicators

/// What one rank saw of a step that failed.
struct failed_step {
  bool threw = false;
  std::size_t step = 0;       // of the step that threw, from 0
  std::uint64_t counted = 0;  // statistics().step after it
  std::vector<float> values{};
};

/// Trains until a step throws communicator_error.
template <class Optimizer>
std::vector<failed_step> train_until_failure(const experiment& e, const typename Optimizer::options_type& options,
                                             thread_group& group) {
  std::vector<failed_step> seen(static_cast<std::size_t>(e.world));
  std::atomic<bool> intact{true};
  slamb::run_ranks(group, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options, std::move(communicator), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      set_mask(run, e.masks[t]);
      try {
        run.step(e.rates[t]);
      } catch (const communicator_error&) {
        seen[rank] = {true, t, run.statistics().step, mine.values()};
        if (!mine.intact()) intact = false;
        // The group stays failed: another try fails at once and changes nothing either.
        const std::vector<float> before = mine.values();
        CHECK_THROWS_AS(run.step(e.rates[t]), communicator_error);
        CHECK_THROWS_AS(run.step(e.rates[t]), communicator_error);
        CHECK(test_support::same_bits(mine.values(), before));
        return;
      }
    }
  });
  CHECK(intact);
  return seen;
}

/// Whether every element of `values` is this rank's own after the step or the mean of all ranks'.
bool own_or_mean(const std::vector<float>& values, const std::vector<float>& own, const std::vector<float>& mean) {
  if (values.size() != own.size()) return false;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != own[i] && values[i] != mean[i]) return false;
  return true;
}

/// Whether the mean of the ranks' own values is `mean`, but for rounding.
bool have_mean(const std::vector<failed_step>& ranks, const std::vector<float>& mean) {
  std::vector<double> sum(mean.size(), 0.0);
  for (const failed_step& of_rank : ranks)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank.values[i] / static_cast<double>(ranks.size());
  return test_support::max_relative_error(mean, sum) <= 1e-6;
}

template <class Optimizer>
void check_failure_at_each_round(const typename Optimizer::options_type& options) {
  for (const int world : {2, 3, 4}) {
    const experiment e = make_experiment(fault_model(), static_cast<std::uint64_t>(110 + world), world, 3);
    const trajectory expected = test_support::train<Optimizer>(e, options);
    std::vector<failed_step> own;  // what ranks had before the averaging of a step
    int failed_exchanges = 0;
    for (std::uint64_t round = rounds_at_construction;; ++round) {
      thread_group group(world);
      const int culprit = static_cast<int>(round) % world;
      group.inject({.rank = culprit, .round = round, .kind = fault_kind::throws});
      const auto seen = train_until_failure<Optimizer>(e, options, group);
      if (!seen[0].threw) {
        for (const failed_step& of_rank : seen) CHECK_FALSE(of_rank.threw);
        break;
      }
      CAPTURE(world);
      CAPTURE(round);
      const std::size_t step = seen[0].step;
      const bool taken = seen[0].counted == step + 1;
      if (taken && (own.empty() || own[0].step != step)) {  // the first piece of an averaging
        own = seen;
        CHECK(have_mean(own, expected[step][0]));
        CHECK_FALSE(test_support::same_bits(own[0].values, own[1].values));
      }
      if (!taken) ++failed_exchanges;
      for (std::size_t rank = 0; rank < seen.size(); ++rank) {
        const failed_step& mine = seen[rank];
        CHECK(mine.threw);
        CHECK(mine.step == step);
        CHECK(mine.counted == seen[0].counted);
        if (taken) {  // the averaging failed: the step is done, and pieces that were averaged before are
          CHECK(own_or_mean(mine.values, own[rank].values, expected[step][rank]));
        } else {  // the exchange failed: nothing has changed
          CHECK(mine.counted == step);
          CHECK(test_support::same_bits(mine.values, step == 0 ? e.start : expected[step - 1][rank]));
        }
      }
    }
    CHECK(failed_exchanges == static_cast<int>(e.steps()));
  }
}

/// Trains with a communicator that fails in the calls given, each time trying again what failed.
template <class Optimizer>
trajectory train_through_failures(const experiment& e, const typename Optimizer::options_type& options,
                                  const std::set<std::uint64_t>& failing, int& failures) {
  using flaky = test_support::flaky_communicator<thread_communicator>;
  trajectory reached(e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world)));
  std::atomic<int> failed{0};
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options, flaky(std::move(communicator), failing), test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      set_mask(run, e.masks[t]);
      const auto persevere = [&](auto&& action) {
        for (;;) {
          try {
            return action();
          } catch (const communicator_error&) {
            if (rank == 0) ++failed;
            if (run.statistics().step == t + 1) break;  // only the averaging is left
          }
        }
        for (;;) {
          try {
            return run.synchronize_parameters();
          } catch (const communicator_error&) {
            if (rank == 0) ++failed;
          }
        }
      };
      persevere([&] { run.step(e.rates[t]); });
      reached[t][rank] = mine.values();
    }
  });
  failures = failed;
  return reached;
}

}  // namespace

TEST_CASE("overflow: a step with a gradient that is not finite is skipped by all ranks of LAMB and AdamW") {
  check_overflows<lamb>({});
  check_overflows<lamb>({.max_gradient_norm = 1.0});
  check_overflows<adamw>({});
}

TEST_CASE("overflow: a step with a gradient that is not finite is skipped by all ranks of SLAMB, ages as well") {
  check_overflows<sparse<slamb::random_k<>>>({.local_steps = 2, .dense_below = 20});
  check_overflows<sparse<slamb::random_k<>>>({.dense_below = 20, .compressor = {.block = 16}});
  check_overflows<sparse<bernoulli>>({.local_steps = 2, .dense_below = 20});
  check_overflows<sparse<slamb::explicit_mask>>({.local_steps = 2, .dense_below = 0});
  check_overflows<blend>({.local_steps = 2, .dense_below = 20});
}

TEST_CASE("overflow: it is told to the other ranks when nothing at all is selected") {
  experiment e = make_experiment({{9000}, {300}}, 120, 2, 4);
  for (auto& mask : e.masks) mask.assign(mask.size(), 0);
  check_skipped<sparse<slamb::explicit_mask>>(e, {.dense_below = 0}, std::numeric_limits<float>::quiet_NaN(), 4000, 2);
}

TEST_CASE("overflow: the largest gradients whose squares are finite are no overflow") {
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

TEST_CASE("overflow: LAMB that is told not to look takes the step") {
  for (const int world : {1, 2}) {
    experiment e = make_experiment({{300}, {40}}, 122, world, 2);
    e.gradients[1].back()[50] = std::numeric_limits<float>::infinity();
    const trajectory reached = test_support::train<lamb>(e, {.skip_non_finite = false});
    CHECK(test_support::ranks_agree(reached, 1));
    CHECK(std::isnan(reached[1][0][50]));
    for (std::size_t i = 300; i < 340; ++i) {  // the other tensor goes on
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

TEST_CASE("failure: after a step that failed on all ranks, training goes on as if it had not") {
  const experiment e = make_experiment(fault_model(), 123, 2, 5);
  const auto check = [&e]<class Plain, class Flaky>(std::pair<Plain*, Flaky*> /*types*/,
                                                    const typename Plain::options_type& options) {
    const trajectory expected = test_support::train<Plain>(e, options);
    for (std::uint64_t first = rounds_at_construction; first < 14; ++first) {
      int failures = 0;
      // Once, twice in a row, and once more later.
      const trajectory reached = train_through_failures<Flaky>(e, options, {first, first + 1, first + 4}, failures);
      CAPTURE(first);
      CHECK(same_bits(reached, expected));
      if (first < rounds_at_construction + 4) CHECK(failures >= 2);
    }
  };
  using flaky = test_support::flaky_communicator<thread_communicator>;
  check(std::pair<lamb*, slamb::lamb<flaky>*>{}, {});
  check(std::pair<lamb*, slamb::lamb<flaky>*>{}, {.max_gradient_norm = 1.0});
  check(std::pair<adamw*, slamb::adamw<flaky>*>{}, {});
  check(std::pair<sparse<slamb::random_k<>>*, slamb::slamb<flaky>*>{}, {.local_steps = 2, .dense_below = 20});
  check(std::pair<sparse<bernoulli>*, slamb::slamb<flaky, bernoulli>*>{}, {.local_steps = 2, .dense_below = 20});
  check(std::pair<sparse<slamb::explicit_mask>*, slamb::slamb<flaky, slamb::explicit_mask>*>{},
        {.local_steps = 2, .dense_below = 0});
}

TEST_CASE("failure: a fresh group goes on from the parameters that a failed one has left") {
  const experiment e = make_experiment(fault_model(), 124, 3, 3);
  thread_group broken(3);
  broken.inject({.rank = 1, .round = rounds_at_construction + 1, .kind = fault_kind::throws});
  const auto seen = train_until_failure<adamw>(e, {.beta1 = 0.0, .beta2 = 0.0, .bias_correction = false}, broken);
  // With no memory of earlier steps, a new optimizer is the old one.
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
    thread_group group(3, {.timeout = 200ms});
    group.inject({.rank = 2, .round = rounds_at_construction, .kind = fault_kind::stalls});
    const auto begin = std::chrono::steady_clock::now();
    const auto seen = train_until_failure<Optimizer>(e, {}, group);
    CHECK(std::chrono::steady_clock::now() - begin < 15s);
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

TEST_CASE("failure: a sum that comes back spoiled is skipped by all ranks") {
  const experiment e = make_experiment(fault_model(), 127, 2, 3);
  thread_group group(2);
  group.inject({.rank = 1, .round = rounds_at_construction + 1, .kind = fault_kind::corrupts});
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
