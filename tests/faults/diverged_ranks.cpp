// Diverged ranks: at different steps, with different rates or parameters, or from different runs. Every rank throws and names
// the difference, and nothing changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "instances/emulated.hpp"
#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/every_recipe.hpp"
#include "support/faulty_training.hpp"
#include "support/saved_training.hpp"
#include "support/thread_nodes.hpp"

namespace faults_diverged_ranks_tests {
namespace {

using test_support::every_recipe;
using test_support::experiment;
using test_support::made_optimizer;
using test_support::make_experiment;
using test_support::nodes_of_threads;
using test_support::replica;
using test_support::same_bits;
using test_support::thread_nodes;
using test_support::trajectory;

const std::string of_one_run =
    "load states that were saved after the same step of the same run, on all ranks or on none";

/// The message of the exception of a call on this rank, with its type unless it is rank_mismatch_error; empty if it throws none.
std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const slamb::rank_mismatch_error& error) {
    return error.what();
  } catch (const slamb::communicator_error& error) {
    return std::string("communicator_error: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
  return {};
}

/// The message of a step's exception. Fails if a step that throws changes the rank.
std::string said_by_step(made_optimizer& run, replica& mine, std::span<const double> rates) {
  const std::vector<std::byte> state = run.save_state();
  const std::vector<float> values = mine.values();
  const std::string said = said_by([&] { run.step(rates); });
  if (!said.empty() && (run.save_state() != state || !same_bits(mine.values(), values))) return said + " AND MOVED";
  return said;
}

/// Calls said(t) for each step until one returns a message: that message, with its step.
template <class Said>
std::string first_said(std::size_t steps, const Said& said) {
  for (std::size_t t = 0; t < steps; ++t)
    if (const std::string text = said(t); !text.empty()) return "step " + std::to_string(t + 1) + ": " + text;
  return {};
}

struct ranks_said {
  std::vector<std::string> of_rank;

  explicit ranks_said(int world) : of_rank(static_cast<std::size_t>(world)) {}
  bool all_equal(const std::string& expected) const {
    for (const std::string& said : of_rank)
      if (said != expected) return false;
    return true;
  }
};
std::ostream& operator<<(std::ostream& to, const ranks_said& all) {
  for (const std::string& said : all.of_rank) to << "\n  " << said;
  return to;
}

constexpr int world = 3;
experiment small_experiment(std::uint64_t seed, std::size_t steps = test_support::steps_of_recipes) {
  experiment e = make_experiment({{17}, {9000}, {0}, {33, 1}, {300}}, seed, world, steps);
  test_support::use_one_rate(e, 0.01);
  return e;
}

void take(made_optimizer& run, replica& mine, const experiment& e, std::size_t rank, std::size_t first,
          std::size_t last) {
  for (std::size_t t = first; t < last; ++t) {
    mine.set_gradient(e.gradients[t][rank]);
    run.set_mask(e.masks[t]);
    run.step(e.rates[t]);
  }
}

/// On each rank: an optimizer after `steps` steps, and the message that `then` returns for it.
template <class Then>
ranks_said said_after(const experiment& e, const test_support::optimizer_maker& make, std::size_t steps,
                      const Then& then) {
  ranks_said all(world);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer run = make_one(make, mine.parameters(), std::move(communicator));
    take(run, mine, e, rank, 0, steps);
    mine.set_gradient(e.gradients[steps][rank]);
    run.set_mask(e.masks[steps]);
    all.of_rank[rank] = then(run, mine, rank);
  });
  return all;
}

}  // namespace

TEST_CASE(
    "diverged ranks: states of different steps are rejected at the first step, and training resumes from the right "
    "ones") {
  const experiment e = small_experiment(1);
  for (const test_support::recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const test_support::course whole = test_support::train_saving(e, r.make);
    std::vector<std::string> then(world);
    const ranks_said all = said_after(e, r.make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
      const auto go_back_to = [&](std::size_t step) {
        run.load_state(whole.at[step][rank].state);
        mine.set_values(whole.at[step][rank].values);
        mine.set_gradient(e.gradients[step][rank]);
        run.set_mask(e.masks[step]);
      };
      go_back_to(rank == 2 ? 8 : 9);
      std::string said = said_by_step(run, mine, e.rates[9]);
      if (said_by_step(run, mine, e.rates[9]) != said) said += " AND NOT AGAIN";
      if (rank == 2) go_back_to(9);
      then[rank] = said_by([&] { take(run, mine, e, rank, 9, 12); });
      if (test_support::checkpoint{run.save_state(), mine.values()} != whole.at[12][rank]) then[rank] += " elsewhere";
      return said;
    });
    CAPTURE(all);
    CHECK(all.all_equal("slamb: ranks differ in the number of their step: 10 on rank 0, 9 on rank 2; " + of_one_run));
    CHECK(then == std::vector<std::string>(world));
  }
}

TEST_CASE("diverged ranks: a state that only one rank has loaded is rejected") {
  const experiment e = small_experiment(2);
  for (const test_support::recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const test_support::course whole = test_support::train_saving(e, r.make);
    const ranks_said all = said_after(e, r.make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
      if (rank == 1) run.load_state(whole.at[6][rank].state);
      return said_by_step(run, mine, e.rates[0]);
    });
    CAPTURE(all);
    CHECK(all.all_equal("slamb: ranks differ in the number of their step: 1 on rank 0, 7 on rank 1; " + of_one_run));
  }
}

TEST_CASE("diverged ranks: states of the same step of two runs are rejected") {
  const experiment e = small_experiment(3), other = small_experiment(4);
  for (const test_support::recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const test_support::course one = test_support::train_saving(e, r.make);
    const test_support::course two = test_support::train_saving(other, r.make);
    const ranks_said all = said_after(e, r.make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
      const test_support::checkpoint& from = (rank == 0 ? one : two).at[9][rank];
      run.load_state(from.state);
      mine.set_values(one.at[9][0].values);  // equal, so that only the states differ
      return said_by_step(run, mine, e.rates[9]);
    });
    CAPTURE(all);
    CHECK(
        all.all_equal("slamb: ranks differ in the history of their earlier steps (rank 0 and rank 1); load states that "
                      "were saved after the same step of the same run; if no state was loaded, a collective of the "
                      "Communicator has returned other bits on one rank than on another"));
  }
}

TEST_CASE("diverged ranks: other learning rates are rejected in the same step, or before a local update is sent") {
  const experiment e = small_experiment(5);
  for (const test_support::recipe& r : every_recipe())
    for (const std::size_t t : {std::size_t{0}, std::size_t{3}, std::size_t{7}, std::size_t{11}}) {
      CAPTURE(r.name);
      CAPTURE(t);
      const bool is_local = t > 0 && r.rounds[t] == 0;
      const ranks_said all = said_after(e, r.make, t, [&](made_optimizer& run, replica& mine, std::size_t rank) {
        const std::vector<double> rates{rank == 1 ? 0.02 : 0.01};
        if (!is_local) return said_by_step(run, mine, rates);
        run.step(rates);
        for (std::size_t next = t + 1; next < e.steps(); ++next)
          if (const std::string said = said_by_step(run, mine, e.rates[next]); !said.empty()) return said;
        return std::string();
      });
      CAPTURE(all);
      CHECK(all.all_equal(
          is_local ? "slamb: ranks differ in the history of their earlier steps (rank 0 and rank 1); load states that "
                     "were saved after the same step of the same run; if no state was loaded, a collective of the "
                     "Communicator has returned other bits on one rank than on another"
                   : "slamb: ranks differ in the learning rate of group 0: 0.01 on rank 0, 0.02 on rank 1; step() must "
                     "be given the same learning rates on all ranks"));
    }
}

TEST_CASE(
    "diverged ranks: options that one rank has changed are rejected in the same step, or before a local update is "
    "sent") {
  const experiment e = small_experiment(15);
  const std::string remedy = "; all ranks must change their options alike";
  for (const test_support::recipe& r : every_recipe())
    for (const std::size_t t : {std::size_t{0}, std::size_t{3}, std::size_t{7}, std::size_t{11}}) {
      CAPTURE(r.name);
      CAPTURE(t);
      const std::vector<double> decays(e.tensors.size(), 0.25);
      for (const bool of_tensors : {false, true}) {
        std::vector<std::string> then(world);
        const ranks_said all = said_after(e, r.make, t, [&](made_optimizer& run, replica& mine, std::size_t rank) {
          const auto change = [&] {
            if (of_tensors)
              run.set_options({.weight_decay = decays});
            else
              run.set_options({.beta1 = 0.75});
          };
          if (rank == 1) change();
          for (std::size_t next = t; next < e.steps(); ++next) {
            mine.set_gradient(e.gradients[next][rank]);
            const std::string said = said_by_step(run, mine, e.rates[next]);
            if (said.empty()) continue;
            if (next > t && r.rounds[t] != 0) return "later: " + said;
            if (r.rounds[t] == 0) return said;  // ranks have taken other steps, and stay apart
            if (rank != 1) change();
            then[rank] = said_by([&] { take(run, mine, e, rank, next, e.steps()); });
            return said;
          }
          return std::string();
        });
        CAPTURE(all);
        for (const std::string& said : all.of_rank) {
          CHECK(said.starts_with(of_tensors ? "slamb: ranks differ in the weight decay of tensor 0: "
                                            : "slamb: ranks differ in beta1: "));
          CHECK(said.ends_with((of_tensors ? "0.25 on rank 1" : "0.75 on rank 1") + remedy));
        }
        CHECK(then == std::vector<std::string>(world));
      }
    }
}

TEST_CASE("diverged ranks: other parameters are rejected at the first step, until they are broadcast") {
  experiment e = small_experiment(6);
  std::vector<float> others = e.start;
  others[17 + 4321] = std::nextafter(others[17 + 4321], 10.0F);  // of tensor 1
  for (const test_support::recipe& r : every_recipe()) {
    CAPTURE(r.name);
    std::vector<std::string> then(world);
    trajectory reached(e.steps(), std::vector<std::vector<float>>(world));
    const ranks_said all = said_after(e, r.make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
      if (rank == 2) mine.set_values(others);
      std::string said = said_by_step(run, mine, e.rates[0]);
      run.broadcast_parameters(2);
      if (!same_bits(mine.values(), others)) said += " AND NOT BROADCAST";
      then[rank] = said_by([&] {
        for (std::size_t t = 0; t < e.steps(); ++t) {
          take(run, mine, e, rank, t, t + 1);
          reached[t][rank] = mine.values();
        }
      });
      return said;
    });
    CAPTURE(all);
    CHECK(
        all.all_equal("slamb: ranks differ in the parameters of tensor 1 (rank 0 and rank 2); start all ranks with the "
                      "same parameters, for example by broadcast_parameters()"));
    CHECK(then == std::vector<std::string>(world));
    experiment from_others = e;
    from_others.start = others;
    CHECK(same_bits(reached, test_support::train(from_others, r.make)));
  }
}

namespace {

/// Trains, and alters one parameter of rank 1 after step `when`. Returns the step at which each rank throws, or 0.
template <class Optimizer>
std::vector<std::size_t> told_at(const typename Optimizer::options_type& options, std::size_t when,
                                 const std::string& expected) {
  const experiment e = small_experiment(7);
  std::vector<std::size_t> step(world, 0);
  const ranks_said all = said_after(e, test_support::maker_of<Optimizer>(options), when,
                                    [&](made_optimizer& run, replica& mine, std::size_t rank) {
                                      std::vector<float> values = mine.values();
                                      if (rank == 1) values[5] = -values[5];
                                      mine.set_values(values);
                                      for (std::size_t t = when; t < e.steps(); ++t)
                                        if (std::string said = said_by_step(run, mine, e.rates[t]); !said.empty()) {
                                          step[rank] = t + 1;
                                          return said;
                                        }
                                      return std::string();
                                    });
  CAPTURE(all);
  CHECK(all.all_equal(expected));
  return step;
}

}  // namespace

TEST_CASE("diverged ranks: the next comparison finds parameters that were altered on one rank") {
  using communicator = slamb::thread_communicator;
  const std::string of_tensor_0 =
      "slamb: ranks differ in the parameters of tensor 0 (rank 0 and rank 1); start all ranks with the same "
      "parameters, for example by broadcast_parameters()";
  const auto all_at = [](std::size_t t) { return std::vector<std::size_t>(world, t); };
  CHECK(told_at<slamb::lamb<communicator>>({.ranks = {.compare_every = 3}}, 4, of_tensor_0) == all_at(6));
  CHECK(told_at<slamb::adamw<communicator>>({.ranks = {.compare_every = 7}}, 4, of_tensor_0) == all_at(7));
  CHECK(told_at<slamb::one_bit_lamb<communicator>>({.ranks = {.compare_every = 3}, .warm_up = {2}}, 4, of_tensor_0) ==
        all_at(6));
  CHECK(told_at<slamb::zero_one_adam<communicator>>(
            {.ranks = {.compare_every = 3}, .variance_schedule = {.freeze_step = 100}}, 4, of_tensor_0) == all_at(6));
  CHECK(told_at<slamb::lamb<communicator>>({.ranks = {.compare_every = 0}}, 4, "") == all_at(0));
  CHECK(told_at<slamb::lamb<communicator>>({}, 4, "") == all_at(0));  // not within the first hundred steps
  // The ranks differ in any case, and become their mean in step 6.
  CHECK(told_at<slamb::slamb<communicator>>({.local_steps = 5, .ranks = {.compare_every = 3}}, 4, "") == all_at(0));
  // The ranks became their mean in step 5.
  CHECK(told_at<slamb::slamb<communicator>>({.local_steps = 4, .ranks = {.compare_every = 3}}, 5, of_tensor_0) ==
        all_at(6));
  CHECK(told_at<slamb::slamb<communicator>>({.local_steps = 4, .ranks = {.compare_every = 7}}, 5, "") == all_at(0));
  CHECK(told_at<slamb::slamb<communicator>>({.local_steps = 4, .ranks = {.compare_every = 0}}, 5, "") == all_at(0));
}

TEST_CASE("diverged ranks: SLAMB's parameters are compared in the step after an averaging") {
  const std::string of_tensor_0 =
      "slamb: ranks differ in the parameters of tensor 0 (rank 0 and rank 1); start all ranks with the same "
      "parameters, for example by broadcast_parameters()";
  const experiment e = small_experiment(17);
  const auto altered_after = [&](auto make_equal, bool is_altered) {
    return said_after(e,
                      test_support::maker_of<slamb::slamb<slamb::thread_communicator>>(
                          {.local_steps = 0, .ranks = {.compare_every = 2}}),
                      3, [&](made_optimizer& run, replica& mine, std::size_t rank) {
                        make_equal(run);
                        std::vector<float> values = mine.values();
                        if (is_altered && rank == 1) values[5] = -values[5];
                        mine.set_values(values);
                        std::string said = said_by_step(run, mine, e.rates[3]);
                        if (is_altered) run.broadcast_parameters(0);  // otherwise each step throws again
                        for (std::size_t t = 3; t < e.steps(); ++t) said += said_by_step(run, mine, e.rates[t]);
                        return said;
                      });
  };
  const auto average = [](made_optimizer& run) { run.synchronize_parameters(); };
  const auto broadcast = [](made_optimizer& run) { run.broadcast_parameters(1); };
  const auto evaluate = [](made_optimizer& run) { run.with_averaged_parameters([] {}); };
  for (const ranks_said& all : {altered_after(average, true), altered_after(broadcast, true)}) {
    CAPTURE(all);
    CHECK(all.all_equal(of_tensor_0));
  }
  // Nothing is altered, or ranks have their own parameters again.
  for (const ranks_said& all :
       {altered_after(average, false), altered_after(broadcast, false), altered_after(evaluate, true)}) {
    CAPTURE(all);
    CHECK(all.all_equal(""));
  }
}

TEST_CASE("diverged ranks: another averaging interval in a state of SLAMB is not a difference") {
  const experiment e = small_experiment(18);
  using optimizer = slamb::slamb<slamb::thread_communicator>;
  std::vector<std::vector<std::byte>> states(world);
  std::vector<std::vector<float>> values(world);
  const ranks_said saved = said_after(e, test_support::maker_of<optimizer>({.local_steps = 100}), 4,
                                      [&](made_optimizer& run, replica& mine, std::size_t rank) {
                                        states[rank] = run.save_state();
                                        values[rank] = mine.values();
                                        return std::string();
                                      });
  REQUIRE(!same_bits(std::span(values[0]), std::span(values[1])));
  const ranks_said all =
      said_after(e, test_support::maker_of<optimizer>({.local_steps = 3, .ranks = {.compare_every = 1}}), 0,
                 [&](made_optimizer& run, replica& mine, std::size_t rank) {
                   run.load_state(states[rank]);
                   mine.set_values(values[rank]);
                   return said_by([&] { take(run, mine, e, rank, 4, e.steps()); });
                 });
  CAPTURE(all);
  CHECK(all.all_equal(""));
}

namespace {

/// Gives rank 1 another mask from step `when` on: two different neighbours in the mask of tensor 1 are swapped.
template <class Optimizer>
std::vector<std::size_t> mask_told_at(const typename Optimizer::options_type& options, std::size_t when) {
  const experiment e = small_experiment(19);
  std::vector<std::size_t> step(world, 0);
  const ranks_said all = said_after(
      e, test_support::maker_of<Optimizer>(options), 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
        for (std::size_t t = 0; t < e.steps(); ++t) {
          std::vector<std::uint8_t> mask = e.masks[t];
          const auto first = mask.begin() + 17;
          const auto change = std::adjacent_find(first, first + 9000, std::not_equal_to<>());
          REQUIRE(change != first + 9000);
          if (rank == 1 && t >= when) std::swap(*change, *std::next(change));
          run.set_mask(mask);
          mine.set_gradient(e.gradients[t][rank]);
          const std::string said = said_by_step(run, mine, e.rates[t]);
          if (said.empty()) continue;
          step[rank] = t + 1;
          return said;
        }
        return std::string();
      });
  CAPTURE(all);
  CHECK(all.all_equal(
      step[0] == 0 ? ""
                   : "slamb: ranks differ in the elements that the compressor selects (rank 0 and rank 1); set the "
                     "same mask for explicit_mask on all ranks; a sparsifier's selection must not depend on the rank"));
  return step;
}

}  // namespace

TEST_CASE("diverged ranks: different masks are found in the first step, and by the next comparison") {
  using communicator = slamb::thread_communicator;
  using optimizer = slamb::slamb<communicator, slamb::explicit_mask>;
  const auto all_at = [](std::size_t t) { return std::vector<std::size_t>(world, t); };
  CHECK(mask_told_at<optimizer>({.dense_below = 100}, 0) == all_at(1));
  CHECK(mask_told_at<optimizer>({.dense_below = 100, .ranks = {.compare_every = 3}}, 3) == all_at(6));
  CHECK(mask_told_at<optimizer>({.dense_below = 100, .ranks = {.compare_every = 0}}, 0) == all_at(0));
  CHECK(mask_told_at<optimizer>({.dense_below = 9001}, 0) == all_at(0));  // the tensor is dense
}

TEST_CASE(
    "diverged ranks: without comparisons ranks may start from different parameters, but from nothing else that "
    "differs") {
  using communicator = slamb::thread_communicator;
  const experiment e = small_experiment(8);
  const auto make = test_support::maker_of<slamb::lamb<communicator>>({.ranks = {.compare_every = 0}});
  const ranks_said all = said_after(e, make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
    if (rank == 2) mine.set_values(std::vector<float>(e.start.size(), 0.5F));
    const std::string said = said_by_step(run, mine, e.rates[0]);
    return said + said_by_step(run, mine, std::vector<double>{rank == 2 ? 0.02 : 0.01});
  });
  CAPTURE(all);
  CHECK(all.all_equal(
      "slamb: ranks differ in the learning rate of group 0: 0.01 on rank 0, 0.02 on rank 2; step() must be "
      "given the same learning rates on all ranks"));
}

namespace {

/// Ranks as threads. At one call, rank 1 gets another bit in one place of the sum. There are no other collectives.
class altering_communicator {
 public:
  altering_communicator(slamb::thread_communicator base, std::uint64_t call, std::size_t place)
      : base_(std::move(base)), call_(call), place_(place) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    base_.all_reduce_sum(values, stream);
    if (values.size() > least && calls_++ == call_ && rank() == 1)
      values[place_] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[place_]) ^ 1U);
  }

 private:
  static constexpr std::size_t least = 1000;  // size of a payload; comparisons of ranks are shorter

  slamb::thread_communicator base_;
  std::uint64_t call_;
  std::size_t place_;
  std::uint64_t calls_ = 0;
};

using altered_lamb = slamb::lamb<altering_communicator>;

/// The ranks' messages at each step, if only rank 1 gets another bit in `place` of the sum of step 2.
ranks_said said_of_altered(std::size_t place) {
  const experiment e = small_experiment(9);
  ranks_said all(world);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    altered_lamb run(mine.parameters(), {}, altering_communicator(std::move(communicator), 2, place),
                     test_support::one_thread());
    all.of_rank[rank] = first_said(5, [&](std::size_t t) {
      mine.set_gradient(e.gradients[t][rank]);
      return said_by([&] { run.step(e.rates[t]); });
    });
  });
  return all;
}

}  // namespace

TEST_CASE("diverged ranks: a sum that differs on one rank is found in the next step") {
  const ranks_said all = said_of_altered(slamb::detail::sum_header::floats);  // the first float of the payload
  CAPTURE(all);
  CHECK(
      all.all_equal("step 4: slamb: ranks differ in the history of their earlier steps (rank 0 and rank 1); load "
                    "states that were saved after the same step of the same run; if no state was loaded, a collective "
                    "of the Communicator has returned other bits on one rank than on another"));
}

TEST_CASE("diverged ranks: parameters are broadcast as a sum if the Communicator has no broadcast") {
  const experiment e = small_experiment(10);
  std::vector<std::vector<float>> reached(world);
  std::vector<float> others = e.start;
  others[0] = -0.0F;
  others[1] = std::numeric_limits<float>::denorm_min();
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, rank == 1 ? others : e.start);
    altered_lamb run(mine.parameters(), {}, altering_communicator(std::move(communicator), 1000, 0),
                     test_support::one_thread());
    run.broadcast_parameters(1);
    reached[rank] = mine.values();
    run.step(0.01);
  });
  others[0] = 0.0F;  // −0 + 0 is 0
  for (const std::vector<float>& values : reached) CHECK(same_bits(std::span(values), std::span(others)));
}

TEST_CASE("diverged ranks: a broadcast of parameters from a rank out of range is rejected") {
  std::vector<float> values(4, 1.0F);
  const std::vector<slamb::parameter> parameters{{values.data(), values.data(), 0}};
  for (const int root : {-1, 1, 1000}) {
    slamb::lamb<> run(parameters);
    CHECK_THROWS_WITH_AS(
        run.broadcast_parameters(root),
        ("slamb: broadcast_parameters() was given rank " + std::to_string(root) + ", but the ranks are 0 … 0").c_str(),
        std::invalid_argument);
  }
}

TEST_CASE("diverged ranks: parameters that are broadcast between local steps are the new anchor") {
  using optimizer = slamb::zero_one_adam<slamb::thread_communicator>;
  const optimizer::options_type options{.variance_schedule = {.freeze_step = 3, .update_scaler = 2},
                                        .local_schedule = {.scaler = 2, .clipper = 8}};
  const experiment e = small_experiment(11);
  std::vector<std::vector<float>> broadcast(world), reached(world);
  const ranks_said all = said_after(e, test_support::maker_of<optimizer>(options), 9,
                                    [&](made_optimizer& run, replica& mine, std::size_t rank) {
                                      run.broadcast_parameters(1);
                                      broadcast[rank] = mine.values();
                                      const std::string said = said_by([&] { take(run, mine, e, rank, 9, 15); });
                                      run.synchronize_parameters();
                                      reached[rank] = mine.values();
                                      return said;
                                    });
  CAPTURE(all);
  CHECK(all.all_equal(""));
  for (int r = 1; r < world; ++r) {
    CHECK(same_bits(std::span(broadcast[0]), std::span(broadcast[static_cast<std::size_t>(r)])));
    CHECK(same_bits(std::span(reached[0]), std::span(reached[static_cast<std::size_t>(r)])));
  }
}

namespace {

/// Four ranks in nodes; some, by default rank 3, get another rate at step `when`. Returns each rank's message, with its step.
template <class Optimizer>
ranks_said said_in_nodes(std::vector<int> sizes, const typename Optimizer::options_type& options, std::size_t when,
                         const std::set<std::size_t>& others = {3}) {
  experiment e = make_experiment({{17}, {9000}, {300}}, 12, 4, 16);
  test_support::use_one_rate(e, 0.01);
  ranks_said all(4);
  thread_nodes(std::move(sizes)).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    made_optimizer run(Optimizer(mine.parameters(), options, std::move(communicator), test_support::one_thread()));
    all.of_rank[rank] = first_said(e.steps(), [&](std::size_t t) {
      mine.set_gradient(e.gradients[t][rank]);
      const std::vector<double> rates{others.count(rank) != 0 && t == when ? 0.02 : 0.01};
      return said_by_step(run, mine, rates);
    });
  });
  return all;
}

}  // namespace

TEST_CASE("diverged ranks: diverged ranks of one node are found, and all ranks of all nodes throw") {
  const std::string of_rates =
      "slamb: ranks differ in the learning rate of group 0: 0.01 on rank 0, 0.02 on rank 3; step() must be given the "
      "same "
      "learning rates on all ranks";
  const auto check = []<class Optimizer>(std::type_identity<Optimizer>, const typename Optimizer::options_type& options,
                                         std::size_t when, const std::string& expected) {
    for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, std::vector<int>{4}}) {
      const ranks_said all = said_in_nodes<Optimizer>(sizes, options, when);
      CAPTURE(sizes.size());
      CAPTURE(all);
      CHECK(all.all_equal(expected));
    }
  };
  check(std::type_identity<slamb::lamb<nodes_of_threads>>{}, {}, 0, "step 1: " + of_rates);
  check(std::type_identity<slamb::lamb<nodes_of_threads>>{}, {}, 4, "step 5: " + of_rates);
  check(std::type_identity<slamb::slamb<nodes_of_threads>>{}, {.dense_below = 100}, 4, "step 5: " + of_rates);
  check(std::type_identity<slamb::one_bit_lamb<nodes_of_threads>>{}, {.warm_up = {2}}, 1, "step 2: " + of_rates);
  check(std::type_identity<slamb::one_bit_lamb<nodes_of_threads>>{}, {.warm_up = {2}}, 6, "step 7: " + of_rates);
  check(std::type_identity<slamb::zero_one_adam<nodes_of_threads>>{}, {.variance_schedule = {.freeze_step = 100}}, 4,
        "step 5: " + of_rates);
}

TEST_CASE("diverged ranks: ranks that diverge alike in all nodes are found") {
  using optimizer = slamb::one_bit_lamb<nodes_of_threads>;
  for (const std::size_t when : {std::size_t{0}, std::size_t{1}, std::size_t{5}}) {
    CAPTURE(when);
    const ranks_said all = said_in_nodes<optimizer>({2, 2}, {.warm_up = {2}}, when, {1, 3});
    CAPTURE(all);
    CHECK(all.all_equal("step " + std::to_string(when + 1) +
                        ": slamb: ranks differ in the learning rate of group 0: 0.01 on rank 0, 0.02 on rank 1; step() "
                        "must be given the same learning rates on all ranks"));
  }
}

namespace {

/// Ranks as threads. On rank 1, alter(values) is called on the result of each sum of at least 1000 floats, or of each
/// all_gather.
class altered_communicator {
 public:
  using alteration = std::function<void(std::span<std::byte>)>;

  altered_communicator(slamb::thread_communicator base, alteration of_sums, alteration of_gathers)
      : base_(std::move(base)), of_sums_(std::move(of_sums)), of_gathers_(std::move(of_gathers)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    base_.all_reduce_sum(values, stream);
    if (rank() == 1 && of_sums_ && values.size() >= 1000) of_sums_(std::as_writable_bytes(values));
  }
  void all_to_all(std::span<const std::byte> sent, std::span<std::byte> received, slamb::host_stream stream) {
    base_.all_to_all(sent, received, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    base_.all_gather(mine, all, stream);
    if (rank() == 1 && of_gathers_ && all.size() >= 1000) of_gathers_(all);
  }

 private:
  slamb::thread_communicator base_;
  alteration of_sums_, of_gathers_;
};

/// Trains with collectives that are altered on rank 1 while `is_altered(t)`, t from 1 on, and calls compare_ranks() after one
/// step. Returns the ranks' messages, with their steps.
template <class Optimizer>
ranks_said said_of_altered(const typename Optimizer::options_type& options,
                           const std::function<bool(std::size_t t)>& is_altered,
                           const altered_communicator::alteration& of_sums,
                           const altered_communicator::alteration& of_gathers, std::size_t compares_after = 0) {
  const experiment e = small_experiment(22, 30);
  ranks_said all(world);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::size_t t = 0;
    const auto now = [&](const altered_communicator::alteration& alter) -> altered_communicator::alteration {
      if (!alter) return {};
      return [&t, &is_altered, &alter](std::span<std::byte> values) {
        if (t > 0 && is_altered(t)) alter(values);
      };
    };
    replica mine(e.tensors, e.start);
    Optimizer run(mine.parameters(), options,
                  altered_communicator(std::move(communicator), now(of_sums), now(of_gathers)),
                  test_support::one_thread());
    all.of_rank[rank] = first_said(e.steps(), [&](std::size_t i) {
      t = i + 1;
      mine.set_gradient(e.gradients[i][rank]);
      return said_by([&] {
        run.step(e.rates[i]);
        if (t == compares_after) run.compare_ranks();
      });
    });
  });
  return all;
}

const std::string of_collectives =
    "a collective of the Communicator has returned other bits on one rank than on another";

}  // namespace

TEST_CASE("diverged ranks: anchors are compared in the exchanges of local steps") {
  using optimizer = slamb::zero_one_adam<altered_communicator>;
  const auto alter = [](std::span<std::byte> all) { all[all.size() / 2] ^= std::byte{1}; };
  const auto in_step_11 = [](std::size_t t) { return t == 11; };
  const auto said = [&](std::uint64_t compare_every, std::size_t compares_after = 0) {
    return said_of_altered<optimizer>({.ranks = {.compare_every = compare_every},
                                       .variance_schedule = {.freeze_step = 3},
                                       .local_schedule = {.scaler = 1, .clipper = 4}},
                                      in_step_11, {}, alter, compares_after);
  };
  const ranks_said compared = said(6), never = said(0);
  CAPTURE(compared);
  CHECK(
      compared.all_equal("step 15: slamb: ranks differ in the parameters of tensor 1 after their last exchange (rank 0 "
                         "and rank 1); " +
                         of_collectives));
  CAPTURE(never);
  CHECK(never.all_equal(""));
  const ranks_said between = said(0, 12);  // local steps
  CAPTURE(between);
  CHECK(between.all_equal(
      "step 12: slamb: ranks differ in the parameters of tensor 1 after their last exchange (rank 0 and "
      "rank 1); " +
      of_collectives));
}

TEST_CASE("diverged ranks: SLAMB's received values and averaged parameters are compared in the next step") {
  using optimizer = slamb::slamb<altered_communicator>;
  const auto zeros = [](std::span<std::byte> values) {
    std::ranges::fill(values.subspan((slamb::detail::sum_header::floats + 1) * sizeof(float), 100), std::byte{0});
  };
  const ranks_said in_sums = said_of_altered<optimizer>({.local_steps = 0, .ranks = {.compare_every = 5}},
                                                        [](std::size_t t) { return t > 1; }, zeros, {});
  CAPTURE(in_sums);
  CHECK(in_sums.all_equal(
      "step 6: slamb: ranks differ in the values that they received in step 5 (rank 0 and rank 1); " + of_collectives));
  const auto in_averaging = [sums = 0](std::span<std::byte> values) mutable {
    if (++sums == 2) values[values.size() / 2 + 2] ^= std::byte{1};  // after the sum of the step
  };
  const ranks_said averaged = said_of_altered<optimizer>({.local_steps = 10, .ranks = {.compare_every = 5}},
                                                         [](std::size_t t) { return t == 11; }, in_averaging, {});
  CAPTURE(averaged);
  CHECK(
      averaged.all_equal("step 12: slamb: ranks differ in the parameters of tensor 1 (rank 0 and rank 1); start all "
                         "ranks with the same parameters, for example by broadcast_parameters()"));
}

TEST_CASE("diverged ranks: a first step that one rank rejected is compared when it is taken") {
  const experiment e = small_experiment(27);
  const auto make = test_support::maker_of<slamb::slamb<slamb::thread_communicator, slamb::explicit_mask>>(
      {.local_steps = 3, .dense_below = 100});
  const ranks_said all = said_after(e, make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
    std::string said;
    if (rank == 1) {
      run.set_mask({});
      said = said_by_step(run, mine, e.rates[0]);
    }
    return said + said_by([&] { take(run, mine, e, rank, 0, e.steps()); });
  });
  CAPTURE(all);
  CHECK(all.of_rank[0].empty());
  CHECK(all.of_rank[1] ==
        "exception: slamb: explicit_mask was given a mask of 0 bytes, but it must have one for each of the 9350 "
        "elements");
  CHECK(all.of_rank[2].empty());
}

namespace {

/// Ranks as threads. All throw after sum number `call` of those with at least 1000 floats.
class failing_communicator {
 public:
  failing_communicator(slamb::thread_communicator base, int call) : base_(std::move(base)), left_(call) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    base_.all_reduce_sum(values, stream);
    if (values.size() >= 1000 && --left_ == 0) throw slamb::communicator_error("the network is away");
  }

 private:
  slamb::thread_communicator base_;
  int left_;
};

}  // namespace

TEST_CASE("diverged ranks: after a failed averaging, SLAMB's ranks continue with their own parameters") {
  const experiment e = small_experiment(28, 14);
  std::vector<std::vector<float>> after_failure(world), reached(world);
  ranks_said all(world);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    // The sums are: step 1 and its averaging in two pieces, one of them short; steps 2 … 6, and the averaging of step 6.
    slamb::slamb<failing_communicator> run(mine.parameters(), {.local_steps = 5, .ranks = {.compare_every = 1}},
                                           failing_communicator(std::move(communicator), 9),
                                           test_support::one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      const std::string said = said_by([&] { run.step(e.rates[t]); });
      if (!said.empty()) all.of_rank[rank] += "step " + std::to_string(t + 1) + ": " + said + "; ";
      if (!said.empty()) after_failure[rank] = mine.values();
      if (t + 1 == 11) reached[rank] = mine.values();
    }
  });
  CAPTURE(all);
  CHECK(all.all_equal("step 6: communicator_error: the network is away; "));
  CHECK(!same_bits(std::span(after_failure[0]), std::span(after_failure[1])));
  CHECK(same_bits(std::span(reached[0]), std::span(reached[1])));
}

TEST_CASE("diverged ranks: states of two runs differ even if their first tensor never has a gradient") {
  const auto run_of = [](std::uint64_t seed) {
    experiment e = small_experiment(seed);
    for (auto& of_ranks : e.gradients)
      for (std::vector<float>& gradient : of_ranks) std::fill_n(gradient.begin(), 17, 0.0F);
    std::fill_n(e.start.begin(), 17, 0.0F);
    return e;
  };
  const experiment e = run_of(23), other = run_of(24);
  using communicator = slamb::thread_communicator;
  for (const auto& make : {test_support::maker_of<slamb::lamb<communicator>>({}),
                           test_support::maker_of<slamb::slamb<communicator>>({.dense_below = 100})}) {
    const test_support::course one = test_support::train_saving(e, make);
    const test_support::course two = test_support::train_saving(other, make);
    const ranks_said all = said_after(e, make, 0, [&](made_optimizer& run, replica& mine, std::size_t rank) {
      run.load_state((rank == 0 ? one : two).at[9][rank].state);
      mine.set_values(one.at[9][0].values);
      return said_by_step(run, mine, e.rates[9]);
    });
    CAPTURE(all);
    CHECK(
        all.all_equal("slamb: ranks differ in the history of their earlier steps (rank 0 and rank 1); load states that "
                      "were saved after the same step of the same run; if no state was loaded, a collective of the "
                      "Communicator has returned other bits on one rank than on another"));
  }
}

TEST_CASE("diverged ranks: calls between steps compare the steps so far, and the call itself") {
  using communicator = slamb::thread_communicator;
  using zero_one = slamb::zero_one_adam<communicator>;
  const experiment e = small_experiment(25, 30);
  const auto local_steps = test_support::maker_of<zero_one>(
      {.variance_schedule = {.freeze_step = 3}, .local_schedule = {.scaler = 1, .clipper = 16}});
  const auto in_one_call = [&](made_optimizer& run, replica& mine, const std::function<void()>& call) {
    const std::vector<std::byte> state = run.save_state();
    const std::vector<float> values = mine.values();
    const std::string said = said_by(call);
    return run.save_state() == state && same_bits(mine.values(), values) ? said : said + " AND MOVED";
  };
  // Steps 21 … 24 are local.
  const ranks_said steps = said_after(e, local_steps, 20, [&](made_optimizer& run, replica& mine, std::size_t rank) {
    take(run, mine, e, rank, 20, rank == 1 ? 23 : 22);
    return in_one_call(run, mine, [&] { run.synchronize_parameters(); });
  });
  CAPTURE(steps);
  CHECK(steps.all_equal("slamb: ranks differ in the number of their step: 23 on rank 0, 24 on rank 1; " + of_one_run));
  const ranks_said rates = said_after(e, local_steps, 20, [&](made_optimizer& run, replica& mine, std::size_t rank) {
    for (const double rate : {rank == 1 ? 0.02 : 0.01, 0.01}) run.step(rate);
    return in_one_call(run, mine, [&] { run.with_averaged_parameters([] {}); });
  });
  CAPTURE(rates);
  CHECK(
      rates.all_equal("slamb: ranks differ in the history of their earlier steps (rank 0 and rank 1); load states that "
                      "were saved after the same step of the same run; if no state was loaded, a collective of the "
                      "Communicator has returned other bits on one rank than on another"));
  const ranks_said calls = said_after(e, test_support::maker_of<slamb::slamb<communicator>>({}), 5,
                                      [&](made_optimizer& run, replica& mine, std::size_t rank) {
                                        return in_one_call(run, mine, [&] {
                                          if (rank == 1)
                                            run.with_averaged_parameters([] {});
                                          else
                                            run.synchronize_parameters();
                                        });
                                      });
  CAPTURE(calls);
  CHECK(calls.all_equal(
      "slamb: ranks differ in the call that they make (rank 0 and rank 1); all ranks must make the same "
      "calls in the same order"));
  // Steps 21 … 24 are local: the comparison is of their start, which must be equal.
  const ranks_said local_now = said_after(e, local_steps, 22, [&](made_optimizer& run, replica& mine, std::size_t) {
    return in_one_call(run, mine, [&] { run.compare_ranks(); });
  });
  CAPTURE(local_now);
  CHECK(local_now.all_equal(""));
  const ranks_said now =
      said_after(e, test_support::maker_of<slamb::lamb<communicator>>({.ranks = {.compare_every = 0}}), 5,
                 [&](made_optimizer& run, replica& mine, std::size_t rank) {
                   const std::string equal = in_one_call(run, mine, [&] { run.compare_ranks(); });
                   std::vector<float> values = mine.values();
                   if (rank == 1) values[5] = -values[5];
                   mine.set_values(values);
                   return equal + in_one_call(run, mine, [&] { run.compare_ranks(); });
                 });
  CAPTURE(now);
  CHECK(
      now.all_equal("slamb: ranks differ in the parameters of tensor 0 (rank 0 and rank 1); start all ranks with the "
                    "same parameters, for example by broadcast_parameters()"));
  const ranks_said roots =
      said_after(e, test_support::maker_of<slamb::lamb<communicator>>({}), 5,
                 [&](made_optimizer& run, replica& mine, std::size_t rank) {
                   return in_one_call(run, mine, [&] { run.broadcast_parameters(rank == 2 ? 1 : 0); });
                 });
  CAPTURE(roots);
  CHECK(
      roots.all_equal("slamb: ranks differ in the rank that they pass to broadcast_parameters(): 0 on rank 0, 1 on "
                      "rank 2; all ranks must pass the same rank"));
}

namespace {

/// Four ranks in two nodes; rank `altered` has another parameter from step 5 on. Returns each rank's message, with its step.
template <class Optimizer>
ranks_said said_of_altered_in_nodes(const typename Optimizer::options_type& options, std::size_t altered) {
  experiment e = make_experiment({{17}, {9000}, {300}}, 26, 4, 16);
  test_support::use_one_rate(e, 0.01);
  ranks_said all(4);
  thread_nodes({2, 2}).run([&](nodes_of_threads communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    made_optimizer run(Optimizer(mine.parameters(), options, std::move(communicator), test_support::one_thread()));
    all.of_rank[rank] = first_said(e.steps(), [&](std::size_t t) {
      if (t == 4 && rank == altered) {
        std::vector<float> values = mine.values();
        values[20] = -values[20];
        mine.set_values(values);
      }
      mine.set_gradient(e.gradients[t][rank]);
      return said_by_step(run, mine, e.rates[t]);
    });
  });
  return all;
}

}  // namespace

TEST_CASE("diverged ranks: ranks of one node are compared if nodes have parameters of their own") {
  const auto of_rank = [](const char* step, const char* rank) {
    return std::string("step ") + step + ": slamb: ranks of a node differ in the parameters of tensor 1: rank " + rank +
           " has other parameters than the first rank of its node; ranks of a node must load the same state, and start "
           "with the same parameters";
  };
  using sparse = slamb::slamb<nodes_of_threads>;
  const ranks_said of_1 = said_of_altered_in_nodes<sparse>({.ranks = {.compare_every = 7}}, 1);
  CAPTURE(of_1);
  CHECK(of_1.all_equal(of_rank("7", "1")));
  const ranks_said of_3 = said_of_altered_in_nodes<sparse>({.ranks = {.compare_every = 3}}, 3);
  CAPTURE(of_3);
  CHECK(of_3.all_equal(of_rank("6", "3")));
  const ranks_said of_leader = said_of_altered_in_nodes<sparse>({.ranks = {.compare_every = 3}}, 2);
  CAPTURE(of_leader);
  CHECK(of_leader.all_equal(of_rank("6", "3")));
  const ranks_said never = said_of_altered_in_nodes<sparse>({.ranks = {.compare_every = 0}}, 1);
  CAPTURE(never);
  CHECK(never.all_equal(""));
}

TEST_CASE("diverged ranks: a state that one rank could not load is found at the next step") {
  const experiment e = small_experiment(16);
  for (const test_support::recipe& r : every_recipe()) {
    CAPTURE(r.name);
    const test_support::course whole = test_support::train_saving(e, r.make);
    const ranks_said all = said_after(e, r.make, 3, [&](made_optimizer& run, replica& mine, std::size_t rank) {
      std::vector<std::byte> state = whole.at[9][rank].state;
      if (rank == 1) state.back() ^= std::byte{1};
      const std::string said = said_by([&] { run.load_state(state); });
      if (said.empty() != (rank != 1)) return "loaded: " + said;
      return said_by_step(run, mine, e.rates[9]);
    });
    CAPTURE(all);
    CHECK(all.all_equal("slamb: ranks differ in the number of their step: 10 on rank 0, 4 on rank 1; " + of_one_run));
  }
}

TEST_CASE("diverged ranks: a deferred device skips all steps until the host throws") {
  using optimizer = slamb::lamb<slamb::thread_communicator, slamb::emulated_backend>;
  const experiment e = small_experiment(13);
  std::vector<std::string> wrong(world);
  const ranks_said all = [&] {
    ranks_said said(world);
    slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      replica mine(e.tensors, e.start);
      optimizer run(mine.parameters(), {}, std::move(communicator));
      std::vector<float> before;
      for (std::size_t t = 0; t < e.steps(); ++t) {
        mine.set_gradient(e.gradients[t][rank]);
        if (t == 2) before = mine.values();
        said.of_rank[rank] = said_by([&] { run.step(rank == 1 && t == 2 ? 0.02 : 0.01); });
        const slamb::statistics now = run.statistics();
        if (t >= 2 && !same_bits(mine.values(), before)) wrong[rank] += "moved ";
        if (now.has_diverged != (t >= 2 && said.of_rank[rank].empty())) wrong[rank] += "has_diverged ";
        if (now.step != std::min<std::size_t>(t + 1, 2) || now.skipped_steps != 0) wrong[rank] += "counted ";
        if (said.of_rank[rank].empty()) continue;
        said.of_rank[rank] = "step " + std::to_string(t + 1) + ": " + said.of_rank[rank];
        for (std::uint64_t step = 3; step < 40; ++step) {  // all ranks throw, repeatedly
          wrong[rank] += said_by([&] { run.step(0.01); });
          if (run.statistics().step != step || run.statistics().has_diverged) wrong[rank] += "does not go on ";
        }
        return;
      }
    });
    return said;
  }();
  CAPTURE(all);
  CHECK(all.all_equal(
      "step 8: slamb: ranks differ in the learning rates or the parameters of step 3, which has not been taken "
      "(rank 0 and rank 1); step() must be given the same learning rates on all ranks"));
  CHECK(wrong == std::vector<std::string>(world));
}

namespace {

/// The messages of ranks on a device, with their steps, if rank 1 has another mask or another rate in step `when`.
template <class Optimizer>
ranks_said said_on_device(const typename Optimizer::options_type& options, std::size_t when, bool alters_mask) {
  const experiment e = small_experiment(20);
  ranks_said all(world);
  slamb::run_ranks(world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    replica mine(e.tensors, e.start);
    made_optimizer run(Optimizer(mine.parameters(), options, std::move(communicator)));
    std::vector<float> before;
    all.of_rank[rank] = first_said(e.steps(), [&](std::size_t t) {
      const bool is_other = rank == 1 && t == when;
      std::vector<std::uint8_t> mask = e.masks[t];
      if (is_other && alters_mask) std::ranges::swap(*std::ranges::find(mask, 0), *std::ranges::find(mask, 1));
      run.set_mask(mask);
      mine.set_gradient(e.gradients[t][rank]);
      if (t == when) before = mine.values();
      std::string said = said_by([&] { run.step(is_other && !alters_mask ? 0.02 : 0.01); });
      if (t >= when && !same_bits(mine.values(), before)) said += " AND MOVED";
      if (run.statistics().has_diverged != (t >= when && said.empty())) said += " AND has_diverged IS WRONG";
      return said;
    });
  });
  return all;
}

}  // namespace

TEST_CASE("diverged ranks: a device finds differences in sums, in codes and in masks") {
  using communicator = slamb::thread_communicator;
  using backend = slamb::emulated_backend;
  const std::string of_rates =
      "step 8: slamb: ranks differ in the learning rates or the parameters of step 3, which has not been taken (rank 0 "
      "and rank 1); step() must be given the same learning rates on all ranks";
  using one_bit = slamb::one_bit_lamb<communicator, slamb::sign, backend>;
  using zero_one = slamb::zero_one_adam<communicator, slamb::sign, backend>;
  using masked = slamb::slamb<communicator, slamb::explicit_mask, slamb::rescaled_trust_ratio<>, backend>;
  const ranks_said warming_up = said_on_device<one_bit>({.warm_up = {4}}, 2, false);
  const ranks_said compressed = said_on_device<one_bit>({.warm_up = {2}}, 2, false);
  const ranks_said in_first_phase = said_on_device<zero_one>({.variance_schedule = {.freeze_step = 100}}, 2, false);
  const ranks_said in_masks = said_on_device<masked>({.dense_below = 10, .ranks = {.compare_every = 3}}, 2, true);
  const ranks_said in_first_masks = said_on_device<masked>({.dense_below = 10}, 0, true);
  const std::string of_masks =
      "step 8: slamb: ranks differ in the elements that the compressor selects (rank 0 and rank 1); set the same mask "
      "for explicit_mask on all ranks; a sparsifier's selection must not depend on the rank";
  CAPTURE(warming_up);
  CHECK(warming_up.all_equal(of_rates));
  CAPTURE(compressed);
  CHECK(compressed.all_equal(of_rates));
  CAPTURE(in_first_phase);
  CHECK(in_first_phase.all_equal(of_rates));
  CAPTURE(in_masks);
  CHECK(in_masks.all_equal(of_masks));
  CAPTURE(in_first_masks);
  CHECK(in_first_masks.all_equal(of_masks));
}

TEST_CASE("diverged ranks: a call between steps does not read the rates of a step, which may be gone") {
  const experiment e = small_experiment(29);
  std::vector<std::vector<double>> rates(world, std::vector<double>{0.01});
  const ranks_said all = said_after(e, test_support::maker_of<slamb::lamb<slamb::thread_communicator>>({}), 3,
                                    [&](made_optimizer& run, replica& mine, std::size_t rank) {
                                      run.step(slamb::device_learning_rates{rates[rank].data()});
                                      rates[rank][0] = rank == 1 ? 0.02 : 0.01;  // rates of another step
                                      std::vector<float> values = mine.values();
                                      if (rank == 1) values[5] = -values[5];
                                      mine.set_values(values);
                                      return said_by([&] { run.compare_ranks(); });
                                    });
  CAPTURE(all);
  CHECK(
      all.all_equal("slamb: ranks differ in the parameters of tensor 0 (rank 0 and rank 1); start all ranks with the "
                    "same parameters, for example by broadcast_parameters()"));
}

namespace {

/// Σ h² as in model_passes.hpp, element by element, without code of the library.
double fingerprint_of(std::span<const float> values, std::uint32_t tensor, std::uint64_t first) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto position = static_cast<float>((first + i) % (1U << 24U));
    const std::uint32_t place = std::bit_cast<std::uint32_t>(position) ^ ((tensor + 1) * 0x9E3779B9U);
    std::uint32_t h = std::bit_cast<std::uint32_t>(values[i]) ^ (place + (place << 7U) + (place >> 9U));
    h += h << 11U;
    h ^= h >> 15U;
    h += h << 5U;
    h ^= h >> 13U;
    h += h << 17U;
    h ^= h >> 16U;
    sum += static_cast<double>(h >> 8U) * static_cast<double>(h >> 8U);
  }
  return sum;
}

/// The library's fingerprint of tensor 0 alone.
double fingerprint_by_library(std::span<float> values) {
  const std::vector<float> gradient(values.size());
  const std::array<slamb::parameter, 1> parameters{{{values.data(), gradient.data(), values.size()}}};
  const slamb::detail::layout tensors(parameters, 0.0);
  const std::vector<slamb::detail::tile> table = tensors.tile_table();
  const slamb::detail::view_in<> view{{.segments = tensors.segments().data(), .tiles = table.data()}};
  std::vector<double> sums(tensors.tile_count());
  slamb::detail::host::thread_launcher(1, 1).launch(
      slamb::detail::run_pass{slamb::detail::fingerprint_of_parameters{}, view, {0, sums.size()}, sums.data()});
  double all = 0.0;
  for (const double sum : sums) all += sum;
  return all;
}

}  // namespace

TEST_CASE("fingerprint_of_parameters: follows its definition, for all sizes and bits") {
  for (const std::size_t size : {1U, 15U, 16U, 17U, 8192U, 8209U, 20000U}) {
    std::vector<float> values = test_support::random_parameters(14, size);
    values[size / 2] = std::numeric_limits<float>::quiet_NaN();
    values[size / 3] = -0.0F;
    const double expected = fingerprint_of(values, 0, 0);
    CHECK(std::abs(fingerprint_by_library(values) - expected) <= 1e-12 * expected);
  }
}

TEST_CASE("fingerprint_of_parameters: depends on every bit of every element, and on its place") {
  std::vector<float> values = test_support::random_parameters(15, 48);
  const double before = fingerprint_by_library(values);
  for (float& value : values)
    for (unsigned bit = 0; bit < 32; ++bit) {
      const float kept = value;
      value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << bit));
      CHECK(fingerprint_by_library(values) != before);
      value = kept;
    }
  CHECK(fingerprint_by_library(values) == before);
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      std::swap(values[i], values[j]);
      CHECK(fingerprint_by_library(values) != before);
      std::swap(values[i], values[j]);
    }
  std::vector<float> zeros(9000);
  std::set<double> seen;
  for (std::size_t size = 8000; size < 9000; ++size) seen.insert(fingerprint_by_library(std::span(zeros).first(size)));
  CHECK(seen.size() == 1000);
}

}  // namespace faults_diverged_ranks_tests
