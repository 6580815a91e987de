// Evaluations on the mean of the ranks' parameters during a training, which must continue as if there had been none.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/faulty_training.hpp"
#include "support/said.hpp"
#include "support/saved_training.hpp"
#include "support/thread_nodes.hpp"

namespace properties_averaged_evaluation_tests {
namespace {

using slamb::thread_communicator;
using test_support::backend_that_can_be_empty;
using test_support::checkpoint;
using test_support::checkpoints;
using test_support::experiment;
using test_support::made_optimizer;
using test_support::maker_of;
using test_support::model;
using test_support::optimizer_maker;
using test_support::replica;
using test_support::said_by;

using lamb = slamb::lamb<thread_communicator>;
using sparse = slamb::slamb<thread_communicator>;
using zero_one = slamb::zero_one_adam<thread_communicator>;

struct named_maker {
  std::string name;
  optimizer_maker make;
  bool differs;  // true: parameters of ranks differ after steps from the 9th on, except after an exchange
};

/// SLAMB averages at steps 1, 6 and 11; 0/1 Adam has local steps from the 5th on, with exchanges at 5, 6, 7, 11.
std::vector<named_maker> makers() {
  return {{"lamb", maker_of<lamb>({}), false},
          {"slamb", maker_of<sparse>({.local_steps = 5, .dense_below = 100}), true},
          {"0/1 adam",
           maker_of<zero_one>({.variance_schedule = {.freeze_step = 4, .update_scaler = 1},
                               .local_schedule = {.scaler = 2, .clipper = 4}}),
           true}};
}

/// Tensors so large that averaging takes several pieces.
experiment experiment_of(int world) {
  return test_support::make_experiment({{17}, {30'000}, {0}, {300}}, 70 + static_cast<std::uint64_t>(world), world, 12);
}

/// One rank of an experiment.
struct rank_of_run {
  std::size_t rank;
  replica mine;
  made_optimizer run;

  rank_of_run(const experiment& e, const optimizer_maker& make, thread_communicator communicator,
              const slamb::host_backend& backend = test_support::one_thread())
      : rank(static_cast<std::size_t>(communicator.rank())),
        mine(e.tensors, e.start),
        run(make(mine.parameters(), slamb::any_communicator<>(std::move(communicator)), backend)) {}

  void step(const experiment& e, std::size_t t) {
    mine.set_gradient(e.gradients[t][rank]);
    run.step(e.rates[t]);
  }
  checkpoint now() const { return {run.save_state(), mine.values()}; }
};

/// Trains, and calls `between(rank_of_run&, t)` after each step. Returns the state and parameters of all ranks at the end.
template <class Between>
checkpoints train_with(const experiment& e, const optimizer_maker& make, const Between& between) {
  checkpoints end(static_cast<std::size_t>(e.world));
  slamb::run_ranks(e.world, [&](thread_communicator communicator) {
    rank_of_run r(e, make, std::move(communicator));
    for (std::size_t t = 0; t < e.steps(); ++t) {
      r.step(e, t);
      between(r, t);
    }
    end[r.rank] = r.now();
    CHECK(r.mine.intact());
  });
  return end;
}

void nothing_between(rank_of_run& /*r*/, std::size_t /*t*/) {}

}  // namespace

TEST_CASE("averaged evaluation: a training with evaluations ends with the bits of one without") {
  for (const int world : {1, 3}) {
    const experiment e = experiment_of(world);
    for (const named_maker& m : makers()) {
      CAPTURE(world);
      CAPTURE(m.name);
      std::atomic<int> calls{0};
      const checkpoints expected = train_with(e, m.make, nothing_between);
      const checkpoints reached = train_with(e, m.make, [&calls](rank_of_run& r, std::size_t /*t*/) {
        const checkpoint before = r.now();
        r.run.with_averaged_parameters([&calls] { ++calls; });
        if (r.now() != before) FAIL_CHECK("something has changed");
      });
      CHECK(reached == expected);
      CHECK(calls == world * static_cast<int>(e.steps()));
      if (m.name != "slamb" || world == 1) continue;
      const checkpoints other =
          train_with(e, m.make, [](rank_of_run& r, std::size_t /*t*/) { r.run.synchronize_parameters(); });
      CHECK(other != expected);  // so averaging for good would change the training
    }
  }
}

TEST_CASE("averaged evaluation: runs on the mean over ranks, with the same bits on all") {
  for (const int world : {2, 3}) {
    const experiment e = experiment_of(world);
    for (const named_maker& m : makers()) {
      CAPTURE(world);
      CAPTURE(m.name);
      const auto ranks = static_cast<std::size_t>(world);
      std::vector<std::vector<std::vector<float>>> own(e.steps(), std::vector<std::vector<float>>(ranks)), seen = own;
      train_with(e, m.make, [&](rank_of_run& r, std::size_t t) {
        own[t][r.rank] = r.mine.values();
        r.run.with_averaged_parameters([&] { seen[t][r.rank] = r.mine.values(); });
      });
      std::size_t steps_that_differ = 0;
      for (std::size_t t = 0; t < e.steps(); ++t) {
        double worst = 0.0;
        for (std::size_t i = 0; i < own[t][0].size(); ++i) {
          double mean = 0.0, size = 0.0;
          for (std::size_t r = 0; r < ranks; ++r) {
            mean += static_cast<double>(own[t][r][i]) / world;
            size = std::max(size, std::abs(static_cast<double>(own[t][r][i])));
          }
          if (size > 0.0) worst = std::max(worst, std::abs(static_cast<double>(seen[t][0][i]) - mean) / size);
        }
        CHECK(worst < 4e-7);  // a few roundings
        for (std::size_t r = 1; r < ranks; ++r) CHECK(test_support::same_bits(seen[t][r], seen[t][0]));
        if (own[t][1] != own[t][0]) ++steps_that_differ;
      }
      CHECK((steps_that_differ > 3) == m.differs);
    }
  }
}

TEST_CASE("averaged evaluation: after a function that throws, the rank has its own parameters, and others continue") {
  const experiment e = experiment_of(3);
  for (const named_maker& m : makers()) {
    CAPTURE(m.name);
    const checkpoints reached = train_with(e, m.make, [](rank_of_run& r, std::size_t t) {
      const checkpoint before = r.now();
      const auto evaluate = [&] {
        if (r.rank == t % 3) throw std::runtime_error("no such file");
      };
      CHECK(said_by<std::runtime_error>([&] { r.run.with_averaged_parameters(evaluate); }) ==
            (r.rank == t % 3 ? "no such file" : "nothing was thrown"));
      if (r.now() != before) FAIL_CHECK("something has changed");
    });
    CHECK(reached == train_with(e, m.make, nothing_between));
  }
}

TEST_CASE("averaged evaluation: restores the bits of parameters, for all values") {
  const experiment e = experiment_of(2);
  slamb::run_ranks(2, [&](thread_communicator communicator) {
    rank_of_run r(e, maker_of<sparse>({.local_steps = 0}), std::move(communicator));
    r.step(e, 0);
    std::vector<float> odd = r.mine.values();
    using limits = std::numeric_limits<float>;
    const std::vector<float> values{-0.0F,
                                    0.0F,
                                    limits::denorm_min(),
                                    -limits::min() / 3.0F,
                                    limits::max(),
                                    -limits::infinity(),
                                    limits::quiet_NaN(),
                                    -limits::quiet_NaN(),
                                    std::bit_cast<float>(0x7FC12345U),
                                    std::bit_cast<float>(0x7FA00001U)};
    for (std::size_t i = 0; i < odd.size(); i += 7) odd[i] = values[i / 7 % values.size()];
    r.mine.set_values(odd);
    const std::vector<float> before = r.mine.values();
    r.run.with_averaged_parameters([] {});
    CHECK(test_support::same_bits(r.mine.values(), before));
    // The function's writes are discarded.
    r.run.with_averaged_parameters([&] { r.mine.set_values(e.start); });
    CHECK(test_support::same_bits(r.mine.values(), before));
  });
}

TEST_CASE("averaged evaluation: after synchronize_parameters() the mean stays, as without the evaluation") {
  const experiment e = experiment_of(2);
  for (const named_maker& m : makers()) {
    CAPTURE(m.name);
    const auto synchronize = [](bool evaluates) {
      return [evaluates](rank_of_run& r, std::size_t t) {
        if (t % 3 == 2) r.run.synchronize_parameters();
        if (evaluates) r.run.with_averaged_parameters([] {});
      };
    };
    CHECK(train_with(e, m.make, synchronize(true)) == train_with(e, m.make, synchronize(false)));
  }
}

TEST_CASE("averaged evaluation: after a failed averaging each rank has its own parameters") {
  const experiment e = experiment_of(3);
  for (const named_maker& m : makers()) {
    if (!m.differs) continue;
    CAPTURE(m.name);
    const std::uint64_t before_steps = test_support::rounds_before_first_step(m.make);
    std::uint64_t before = 0, of_averaging = 0;
    // 0: no call fails. 1: the call by which ranks report that they have the memory, which is not counted.
    for (std::uint64_t failing = 0; failing == 0 || failing <= of_averaging + 1; ++failing) {
      CAPTURE(failing);
      slamb::thread_group group(3);
      if (failing > 0)
        group.inject({.rank = 1,
                      .round = before_steps + before + failing - 1,
                      .kind = slamb::thread_group::fault::kind_type::throws});
      slamb::run_ranks(group, [&](thread_communicator communicator) {
        rank_of_run r(e, m.make, std::move(communicator));
        for (std::size_t t = 0; t < 9; ++t) r.step(e, t);
        const std::vector<float> own = r.mine.values();
        const std::uint64_t rounds = r.run.statistics().traffic.total().rounds;
        bool is_called = false;
        const std::string said = said_by<slamb::communicator_error>(
            [&] { r.run.with_averaged_parameters([&is_called] { is_called = true; }); });
        CHECK((said == "nothing was thrown") == (failing == 0));
        CHECK(is_called == (failing == 0));
        CHECK(test_support::same_bits(r.mine.values(), own));
        if (failing > 0 || r.rank != 0) return;
        before = rounds;
        of_averaging = r.run.statistics().traffic.total().rounds - rounds;
      });
      if (failing == 0) CHECK(of_averaging >= 1);
    }
    if (m.name == "slamb") CHECK(of_averaging > 2);
  }
}

TEST_CASE("averaged evaluation: missing memory on one rank is reported on all, and training continues unchanged") {
  const experiment e = experiment_of(3);
  for (const named_maker& m : makers()) {
    for (const std::string name : {"with_averaged_parameters()", "broadcast_parameters()"}) {
      const bool broadcasts = name == "broadcast_parameters()";
      if (!broadcasts && !m.differs) continue;
      CAPTURE(m.name);
      CAPTURE(name);
      checkpoints reached(3);
      slamb::run_ranks(3, [&](thread_communicator communicator) {
        bool is_empty = false, is_called = false;
        rank_of_run r(e, m.make, std::move(communicator), backend_that_can_be_empty(is_empty));
        for (std::size_t t = 0; t < e.steps(); ++t) {
          r.step(e, t);
          if (t < 8 || t == 10) continue;  // after step 11 of 0/1 Adam the parameters are equal
          const checkpoint before = r.now();
          is_empty = r.rank == t % 3;
          const std::string said = said_by<std::exception>([&] {
            if (broadcasts) return r.run.broadcast_parameters(1);
            r.run.with_averaged_parameters([&is_called] { is_called = true; });
          });
          is_empty = false;
          if (r.rank == t % 3)
            CHECK(said.find(" bytes could not be allocated: ") != std::string::npos);
          else
            CHECK(said == "slamb: " + name + " did not begin: rank " + std::to_string(t % 3) +
                              " could not allocate memory for it; nothing has changed on any rank");
          CHECK(r.now() == before);
        }
        CHECK_FALSE(is_called);
        reached[r.rank] = r.now();
      });
      CHECK(reached == train_with(e, m.make, nothing_between));
    }
  }
}

TEST_CASE("averaged evaluation: in nodes, all ranks name the one without memory for a broadcast") {
  std::vector<std::string> said(4);
  test_support::thread_nodes({2, 2}).run([&said](test_support::nodes_of_threads communicator, std::size_t rank) {
    replica mine({{300}}, std::vector<float>(300, static_cast<float>(rank)));
    bool is_empty = false;
    slamb::lamb<test_support::nodes_of_threads> run(mine.parameters(), {}, std::move(communicator),
                                                    backend_that_can_be_empty(is_empty));
    is_empty = rank == 3;
    said[rank] = said_by<std::exception>([&run] { run.broadcast_parameters(1); });
    is_empty = false;
    CHECK(mine.values() == std::vector<float>(300, static_cast<float>(rank)));
    run.broadcast_parameters(1);
    CHECK(mine.values() == std::vector<float>(300, 2.0F));  // the value of the node's first rank
    mine.set_gradient(std::vector<float>(300, 0.5F));
    run.step(0.01);
    CHECK(run.statistics().step == 1);
  });
  for (std::size_t rank = 0; rank < 3; ++rank)
    CHECK(said[rank] ==
          "slamb: broadcast_parameters() did not begin: rank 3 could not allocate memory for it; nothing has changed "
          "on any rank");
  CHECK(said[3] == "slamb: 1280 bytes could not be allocated: parameters 1200, padding 80");
}

TEST_CASE("averaged evaluation: step, save and load are rejected in the function, and training continues") {
  const experiment e = experiment_of(2);
  for (const named_maker& m : makers()) {
    CAPTURE(m.name);
    const checkpoints reached = train_with(e, m.make, [&e](rank_of_run& r, std::size_t t) {
      const std::vector<std::byte> state = r.run.save_state();
      r.run.with_averaged_parameters([&] {
        for (const auto& [name, call] : std::vector<std::pair<std::string, std::function<void()>>>{
                 {"step()", [&] { r.run.step(e.rates[t]); }},
                 {"begin_step()", [&] { r.run.begin_step(e.rates[t]); }},
                 {"save_state()", [&] { static_cast<void>(r.run.save_state()); }},
                 {"load_state()", [&] { r.run.load_state(state); }},
                 {"statistics()", [&] { static_cast<void>(r.run.statistics()); }},
                 {"with_averaged_parameters()", [&] { r.run.with_averaged_parameters([] {}); }}})
          CHECK(said_by<std::logic_error>(call) ==
                "slamb: " + name +
                    " was called within with_averaged_parameters() of the same optimizer, by a function that it calls, "
                    "such as a collective of its Communicator; call it when with_averaged_parameters() has returned");
      });
    });
    CHECK(reached == train_with(e, m.make, nothing_between));
  }
}

TEST_CASE("averaged evaluation: is rejected in an open step, and by an optimizer that was moved from") {
  const experiment e = experiment_of(2);
  for (const named_maker& m : makers()) {
    CAPTURE(m.name);
    const checkpoints reached = train_with(e, m.make, [&](rank_of_run& r, std::size_t t) {
      if (t != 8) return;
      r.run.begin_step(e.rates[t]);
      bool is_called = false;
      CHECK(
          said_by<std::logic_error>([&] { r.run.with_averaged_parameters([&is_called] { is_called = true; }); }) ==
          "slamb: with_averaged_parameters() was called between begin_step() and finish_step(); finish the step first");
      CHECK_FALSE(is_called);
      slamb::optimizer other = std::move(r.run);  // abandons the step
      CHECK_THROWS_AS(r.run.with_averaged_parameters([] {}), std::logic_error);
      other.with_averaged_parameters([&is_called] { is_called = true; });
      CHECK(is_called);
      r.run = made_optimizer(std::move(other));
    });
    CHECK(reached == train_with(e, m.make, nothing_between));
  }
}

TEST_CASE(
    "averaged evaluation: takes 4 bytes per parameter while it runs, if parameters may differ, and its traffic "
    "counts") {
  const experiment e = experiment_of(2);
  const std::uint64_t elements = e.start.size();
  for (const named_maker& m : makers()) {
    CAPTURE(m.name);
    slamb::run_ranks(2, [&](thread_communicator communicator) {
      std::uint64_t held = 0, most = 0;
      slamb::host_backend backend = test_support::one_thread();
      const slamb::allocator from = slamb::detail::host_allocator();
      backend.memory = {.allocate =
                            [&, from](std::size_t bytes) {
                              held += bytes;
                              most = std::max(most, held);
                              return from.allocate(bytes);
                            },
                        .deallocate =
                            [&, from](void* memory, std::size_t bytes) {
                              held -= bytes;
                              from.deallocate(memory, bytes);
                            }};
      rank_of_run r(e, m.make, std::move(communicator), backend);
      for (std::size_t t = 0; t < 9; ++t) r.step(e, t);
      const std::uint64_t before = held;
      const slamb::traffic_counts sent = r.run.statistics().traffic;
      most = 0;
      r.run.with_averaged_parameters([] {});
      CHECK(held == before);
      const std::uint64_t taken = most == 0 ? 0 : most - before;
      const slamb::traffic_counts by_evaluation = r.run.statistics().traffic - sent;
      if (m.differs) {
        CHECK(taken >= 4 * elements);
        CHECK(taken < 4 * elements + slamb::detail::arena::alignment);
        CHECK(by_evaluation.total().elements == elements);
      } else {
        CHECK(taken == 0);
        CHECK(by_evaluation.total().rounds == 0);
      }
      const slamb::traffic_counts so_far = r.run.statistics().traffic;
      r.run.synchronize_parameters();
      CHECK(r.run.statistics().traffic - so_far == by_evaluation);
    });
  }
}

}  // namespace properties_averaged_evaluation_tests
