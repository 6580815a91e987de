// 0/1 Adam on a device that runs behind the host. The host learns late which steps were taken. The result equals the oracle's,
// with skipped steps in every phase, and the host waits for no more than the step before.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/deferred_backend.hpp"
#include "support/one_bit_cluster.hpp"

namespace optimizer_zero_one_adam_run_ahead_tests {
namespace {

using test_support::deferred_backend;
using test_support::deferred_communicator;
using test_support::experiment;
using test_support::replica;
using test_support::trajectory;
using test_support::work_queue;

using optimizer = slamb::zero_one_adam<deferred_communicator, slamb::sign, deferred_backend>;
using options_type = optimizer::options_type;

constexpr double tolerance = 2e-6;  // as in zero_one_adam.cpp

// Steps 1 and 3 refresh the variance, 2 and 4 send gradients in signs; then τ = 6, 7, … with L = 1, 1, 2, 2, 4, …: steps 5, 6,
// 7, 11 and 15 exchange.
options_type options_for(bool compress_single_rank) {
  return {.compress_single_rank = compress_single_rank,
          .variance_schedule = {.freeze_step = 4, .update_scaler = 1},
          .local_schedule = {.scaler = 2, .clipper = 4}};
}
constexpr std::size_t steps = 16;
constexpr std::size_t first_local = 4;
bool exchanges(std::size_t t) { return t < first_local || t == 4 || t == 5 || t == 6 || t == 10 || t == 14; }

experiment make(int world, std::uint64_t seed) {
  test_support::model tensors{{300}, {40}, {129, 1}};
  tensors[2].options.compress = false;
  return test_support::make_structured_experiment(tensors, seed, world, steps);
}

/// One rank, as passed to hooks. The training's own computations between steps are enqueued like the steps.
struct rank_at_work {
  const experiment& e;
  const options_type& options;
  std::size_t rank;
  work_queue& queue;
  replica& mine;
  optimizer& run;
  std::uint64_t end_of_last_step = 0;  ///< pieces of work that were enqueued when it returned
  std::uint64_t taken = 0;
  bool is_first = true;   ///< the next step is the first since construction or load_state
  std::size_t begun = 0;  ///< number of steps

  void enqueue_gradient(std::vector<float> gradient) {
    queue.add([this, gradient = std::move(gradient)] { mine.set_gradient(gradient); });
  }
  /// Takes a step, which must not wait for the backward pass enqueued before it. Exception: the first step of several ranks,
  /// because they compare their states before it.
  void step(double rate) {
    const std::uint64_t before = queue.done();
    run.step(rate);
    if (run.communicator().size() == 1 || !is_first) CHECK(queue.done() <= std::max(before, end_of_last_step));
    if (is_first) queue.downloads = queue.waits_for_all = queue.waits_for_part = 0;
    is_first = false;
    end_of_last_step = queue.size();
    ++begun;
  }
  /// The number of waits of the last step for an earlier check, before steps 4, 8, 16 …: whether ranks had diverged by then.
  std::size_t looks() const { return run.communicator().size() > 1 && begun > 4 && std::has_single_bit(begun) ? 1 : 0; }
  /// Takes step t with a gradient of one rank that is not finite: all ranks skip the step, or this rank leaves its gradient out.
  void step_with_overflow(std::size_t t, std::size_t bad_rank) {
    std::vector<float> gradient = e.gradients[t][rank];
    if (rank == bad_rank) gradient[17] = std::nanf("");
    enqueue_gradient(std::move(gradient));
    step(2.0 * e.rates[t][0]);
  }
};

using hook = std::function<void(rank_at_work& r, std::size_t t)>;

/// The plan of a run: the number of skipped steps before each step, and a hook after each.
struct plan {
  int world = 1;
  bool compress_single_rank = false;
  std::size_t skipped = 0;
  hook after{};  ///< called after every step, skipped ones included

  bool has_exchange() const { return world > 1 || compress_single_rank; }
  bool is_certain(std::size_t t) const { return has_exchange() && !exchanges(t); }
  /// The rank with a value that is not finite, in a step that cannot be skipped.
  std::optional<std::size_t> left_out(std::size_t t) const {
    if (skipped == 0 || !is_certain(t)) return {};
    return t % static_cast<std::size_t>(world);
  }
};

/// @param how  this rank's copy, because hooks keep state
void train_rank(plan how, const experiment& e, const options_type& options, slamb::thread_communicator ranks,
                trajectory& reached) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  work_queue queue;
  replica mine(e.tensors, e.start);
  optimizer run(mine.parameters(), options, deferred_communicator(std::move(ranks)), {.queue = &queue});
  rank_at_work r{e, options, rank, queue, mine, run};
  run.statistics();
  queue.downloads = queue.waits_for_all = queue.waits_for_part = 0;
  r.end_of_last_step = queue.size();
  const auto behind = [&](std::size_t t) {
    if (how.after) how.after(r, t);
  };
  for (std::size_t t = 0; t < e.steps(); ++t) {
    for (std::size_t number = 0; number < how.skipped && !how.is_certain(t); ++number) {
      r.step_with_overflow(t, (t + number) % static_cast<std::size_t>(how.world));
      behind(t);
    }
    std::vector<float> gradient = e.gradients[t][rank];
    if (how.left_out(t) == rank) gradient[17] = std::nanf("");
    r.enqueue_gradient(std::move(gradient));
    r.step(e.rates[t][0]);
    ++r.taken;
    queue.add([&reached, &mine, t, rank] { reached[t][rank] = mine.values(); });
    behind(t);
  }
  queue.run_to(work_queue::all);
  CHECK(mine.intact());
  CHECK(queue.bare_waits == 0);
}

/// The worst error of a run compared with the oracle.
double error_of(const plan& how, std::uint64_t seed) {
  const options_type options = options_for(how.compress_single_rank);
  experiment e = make(how.world, seed);
  const auto at_start = test_support::oracle_at_start(e, options);
  test_support::settling settled(at_start);
  std::vector<std::vector<oracle::vector>> expected;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    if (const auto rank = how.left_out(t)) settled.run().leave_out(static_cast<int>(*rank));
    settled.step(test_support::rates_of(e.tensors, e.rates[t]), e.gradients[t]);
    expected.emplace_back();
    for (int rank = 0; rank < how.world; ++rank) expected.back().push_back(settled.run().parameters(rank));
  }
  trajectory reached = test_support::place_of(e);
  slamb::run_ranks(how.world,
                   [&](slamb::thread_communicator ranks) { train_rank(how, e, options, std::move(ranks), reached); });
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t)
    for (std::size_t rank = 0; rank < expected[t].size(); ++rank)
      worst = std::max(worst, test_support::max_relative_error(reached[t][rank], expected[t][rank]));
  return worst;
}

struct ranks_of_run {
  int world;
  bool compress_single_rank;
};
constexpr ranks_of_run all_ranks[] = {{1, false}, {1, true}, {3, false}};

/// Runs on one rank, on a single rank that encodes, and on several ranks; with none, one and two skipped steps before each.
void check_all(std::uint64_t seed, const hook& after) {
  for (const ranks_of_run& ranks : all_ranks)
    for (const std::size_t skipped : {0U, 1U, 2U}) {
      CAPTURE(ranks.world);
      CAPTURE(ranks.compress_single_rank);
      CAPTURE(skipped);
      CHECK(error_of({.world = ranks.world,
                      .compress_single_rank = ranks.compress_single_rank,
                      .skipped = skipped,
                      .after = after},
                     seed) <= tolerance);
    }
}

/// The next step may find everything done that is enqueued now.
void forget_waits(rank_at_work& r) { r.end_of_last_step = r.queue.size(); }

void check_statistics(rank_at_work& r, std::uint64_t taken) {
  const slamb::statistics said = r.run.statistics();
  CHECK(said.step == taken);
  CHECK(said.phase == (taken < first_local ? "variance" : "local steps"));
  forget_waits(r);
}

}  // namespace

TEST_CASE("run ahead: 0/1 Adam follows the oracle, and the host waits for no work after the previous step") {
  check_all(301, {});
}

TEST_CASE("run ahead: the host waits only for a step that may be skipped, and only for its part of the queue") {
  for (const ranks_of_run& ranks : all_ranks)
    for (const std::size_t skipped : {0U, 1U}) {
      const plan kinds{.world = ranks.world, .compress_single_rank = ranks.compress_single_rank, .skipped = skipped};
      plan how = kinds;
      // By then the step itself has begun, and it waited for the step before if that one might be skipped.
      how.after = [kinds, seen = std::size_t{0}, before_is_open = false](rank_at_work& r, std::size_t t) mutable {
        CAPTURE(t);
        CHECK(r.queue.downloads == 0);
        CHECK(r.queue.waits_for_all == 0);
        const std::size_t waits = r.queue.waits_for_part - std::exchange(seen, r.queue.waits_for_part);
        CHECK(waits == (before_is_open ? 1 : 0) + r.looks());
        before_is_open = !kinds.is_certain(t);
      };
      CAPTURE(ranks.world);
      CAPTURE(ranks.compress_single_rank);
      const options_type options = options_for(ranks.compress_single_rank);
      const experiment e = make(ranks.world, 302);
      trajectory reached = test_support::place_of(e);
      slamb::run_ranks(ranks.world,
                       [&](slamb::thread_communicator own) { train_rank(how, e, options, std::move(own), reached); });
    }
}

TEST_CASE("run ahead: statistics after a step report if it was taken") {
  check_all(303, [](rank_at_work& r, std::size_t) {
    check_statistics(r, r.taken);
    if (r.taken >= first_local) CHECK(r.run.statistics().phases.at(1).first_step == first_local + 1);
  });
}

TEST_CASE("run ahead: synchronizing parameters after a step does not change the training") {
  // Not before a step that this rank may leave out, because such a step leaves the parameters unchanged.
  check_all(304, [](rank_at_work& r, std::size_t t) {
    if (!exchanges(t) && !exchanges(t + 1)) return;
    const std::uint64_t before = r.queue.size();
    r.run.synchronize_parameters();
    // Where parameters are equal, ranks only compare: a word, the history, a header, its sum, and the verdict.
    const std::uint64_t comparison = r.run.communicator().size() > 1 ? 5 : 0;
    if (t >= first_local && r.taken == t + 1 && exchanges(t)) CHECK(r.queue.size() == before + comparison);
    forget_waits(r);
  });
}

TEST_CASE("run ahead: a moved optimizer completes the step that was open") {
  check_all(305, [](rank_at_work& r, std::size_t) {
    optimizer elsewhere(std::move(r.run));
    r.run = std::move(elsewhere);
  });
}

TEST_CASE("run ahead: training resumes from a state that is saved after a step") {
  check_all(306, [](rank_at_work& r, std::size_t) {
    const std::vector<std::byte> state = r.run.save_state();
    r.run.load_state(state);
    r.is_first = true;
    CHECK(r.run.save_state() == state);
    check_statistics(r, r.taken);
  });
}

TEST_CASE("run ahead: loading a state replaces an open step") {
  // Before each step another step is taken, or skipped, whose effect is undone.
  for (const bool skipped : {false, true}) {
    CAPTURE(skipped);
    check_all(307, [skipped](rank_at_work& r, std::size_t t) {
      const std::vector<std::byte> state = r.run.save_state();
      const std::vector<float> values = r.mine.values();
      forget_waits(r);
      if (skipped) {
        r.step_with_overflow(t, 0);
      } else {
        r.enqueue_gradient(r.e.gradients[(t + 1) % steps][r.rank]);
        r.step(0.02);
      }
      r.run.load_state(state);
      r.is_first = true;
      r.mine.set_values(values);
      CHECK(r.run.save_state() == state);
      check_statistics(r, r.taken);
    });
  }
}

TEST_CASE("run ahead: parameters that are changed after the last step of the first phase do not become the anchor") {
  // The anchor is the result of this step, although only the next step learns that the phase has ended.
  plan how{.world = 3, .skipped = 1};
  how.after = [](rank_at_work& r, std::size_t t) {
    if (t + 1 != first_local || r.taken != first_local) return;
    r.queue.add([&r] { r.mine.set_values(std::vector<float>(r.e.start.size(), 7.0F)); });
  };
  CHECK(error_of(how, 308) <= tolerance);
}

TEST_CASE("run ahead: if peers are gone while a step is open, every call that needs it throws") {
  slamb::run_ranks(2, [](slamb::thread_communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    const experiment e = make(2, 309);
    work_queue queue;
    replica mine(e.tensors, e.start);
    optimizer run(mine.parameters(), options_for(false), deferred_communicator(std::move(ranks)), {.queue = &queue});
    const std::vector<std::byte> start = run.save_state();
    mine.set_gradient(e.gradients[0][rank]);
    run.step(0.01);
    const std::uint64_t done = queue.done();
    const std::uint64_t enqueued = queue.size();
    queue.peers_are_gone = true;
    const char* const reason = "the peers are gone";
    CHECK_THROWS_WITH_AS(run.step(0.01), reason, slamb::communicator_error);
    CHECK_THROWS_WITH_AS(run.begin_step(0.01), reason, slamb::communicator_error);
    CHECK_THROWS_WITH_AS(run.statistics(), reason, slamb::communicator_error);
    CHECK_THROWS_WITH_AS(run.save_state(), reason, slamb::communicator_error);
    CHECK_THROWS_WITH_AS(run.load_state(start), reason, slamb::communicator_error);
    CHECK_THROWS_WITH_AS(run.synchronize_parameters(), reason, slamb::communicator_error);
    CHECK(queue.done() == done);
    CHECK(queue.size() == enqueued);
    CHECK(queue.bare_waits == 0);
    { const optimizer going(std::move(run)); }  // waits for nothing
    CHECK(queue.done() == done);
  });
}

TEST_CASE("run ahead: if the outcome of a step cannot be read, the host waits for it") {
  const experiment e = make(1, 310);
  trajectory reached[2];
  std::vector<std::byte> states[2];
  int failures = 0;
  for (const bool fails : {false, true})
    slamb::run_ranks(1, [&](slamb::thread_communicator own) {
      work_queue queue;
      replica mine(e.tensors, e.start);
      optimizer run(mine.parameters(), options_for(true), deferred_communicator(std::move(own)), {.queue = &queue});
      for (std::size_t t = 0; t < steps; ++t) {
        CAPTURE(t);
        for (const bool is_skipped : {true, false}) {
          std::vector<float> gradient = e.gradients[t][0];
          if (is_skipped) gradient[17] = std::nanf("");
          mine.set_gradient(gradient);
          try {
            queue.reads_fail = fails;
            run.step(0.01);
          } catch (const slamb::error&) {
            ++failures;
          }
          queue.reads_fail = false;
          queue.run_to(work_queue::all);
        }
        reached[fails ? 1 : 0].push_back({mine.values()});
      }
      CHECK(run.statistics().phases.size() == 2);
      states[fails ? 1 : 0] = run.save_state();
    });
  CHECK(test_support::same_bits(reached[0], reached[1]));
  CHECK(states[0] == states[1]);
  CHECK(failures > 10);
}

}  // namespace optimizer_zero_one_adam_run_ahead_tests
