// Calls that fail on one rank only: a broadcast of parameters, or a step with a wrong argument. Tests the other ranks'
// behaviour, and how all go on.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"

namespace faults_failed_calls_tests {
namespace {

using slamb::communicator_error;
using slamb::thread_communicator;
using test_support::experiment;
using test_support::make_experiment;
using test_support::one_thread;
using test_support::replica;
using test_support::same_bits;

constexpr int world = 3;

experiment small_experiment() {
  experiment e = make_experiment({{17}, {300, 3}}, 130, world, 4);
  for (std::vector<double>& rates : e.rates) rates = {0.01};
  return e;
}

/// [rank] the message of the exception of body(rank), with its type if it is not an error of the library; empty if it throws
/// none.
template <class Body>
std::vector<std::string> said_by_ranks(const Body& body) {
  std::vector<std::string> said(world);
  slamb::run_ranks(world, [&](thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    try {
      body(std::move(communicator), rank);
    } catch (const slamb::error& failure) {
      said[rank] = failure.what();
    }
  });
  return said;
}

template <class Optimizer>
void train(Optimizer& run, replica& mine, const experiment& e, std::size_t rank) {
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][rank]);
    run.step(e.rates[t]);
  }
}

/// Its first broadcast throws on rank 1 only, after all ranks have arrived; rank 1 does not get the data.
class once_failing_communicator {
 public:
  explicit once_failing_communicator(thread_communicator base) : base_(std::move(base)) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) { base_.all_reduce_sum(values, stream); }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream stream) {
    std::vector<std::byte> received(values.begin(), values.end());
    base_.broadcast(std::span(received), root, stream);
    if (rank() == 1 && !std::exchange(has_failed_, true)) throw communicator_error("a checksum is wrong");
    std::ranges::copy(received, values.begin());
  }

 private:
  thread_communicator base_;
  bool has_failed_ = false;
};

}  // namespace

TEST_CASE("failed calls: a broadcast of parameters that fails on one rank throws there, and is repeated on all") {
  const experiment e = small_experiment();
  experiment from_others = e;
  for (float& x : from_others.start) x += 1.0F;
  using optimizer = slamb::lamb<once_failing_communicator>;
  std::vector<std::vector<float>> reached(world);
  std::vector<std::string> first(world), then(world);
  const std::vector<std::string> said = said_by_ranks([&](thread_communicator communicator, std::size_t rank) {
    const std::vector<float>& start = rank == 2 ? from_others.start : e.start;
    replica mine(e.tensors, start);
    optimizer run(mine.parameters(), {}, once_failing_communicator(std::move(communicator)), one_thread());
    try {
      run.broadcast_parameters(2);
    } catch (const communicator_error& failure) {
      first[rank] = failure.what();
    }
    CHECK(same_bits(mine.values(), rank == 1 ? e.start : from_others.start));
    const std::vector<std::byte> state = run.save_state();
    mine.set_gradient(e.gradients[0][rank]);
    try {
      run.step(e.rates[0]);
    } catch (const slamb::rank_mismatch_error& failure) {
      then[rank] = failure.what();
    }
    CHECK(run.save_state() == state);
    run.broadcast_parameters(2);
    CHECK(same_bits(mine.values(), from_others.start));
    train(run, mine, e, rank);
    reached[rank] = mine.values();
  });
  CHECK(said == std::vector<std::string>(world));
  CHECK(first == std::vector<std::string>{"", "a checksum is wrong", ""});
  CHECK(then == std::vector<std::string>(world,
                                         "slamb: ranks differ in the parameters of tensor 0 (rank 0 and rank 1); start "
                                         "all ranks with the same parameters, for example by broadcast_parameters()"));
  const auto expected = test_support::train(from_others, test_support::maker_of<slamb::lamb<thread_communicator>>({}));
  for (std::size_t rank = 0; rank < world; ++rank) CHECK(same_bits(reached[rank], expected.back()[rank]));
}

TEST_CASE("failed calls: a broadcast of parameters in a failed group throws on all ranks, and again") {
  const experiment e = small_experiment();
  using optimizer = slamb::lamb<thread_communicator>;
  std::atomic<int> failed{0};
  const auto said = said_by_ranks([&](thread_communicator communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    optimizer run(mine.parameters(), {}, std::move(communicator), one_thread());
    if (rank == 1) run.communicator().abort("no more");
    for (int again = 0; again < 2; ++again) {
      try {
        run.broadcast_parameters(2);
      } catch (const communicator_error&) {
        ++failed;
      }
    }
    CHECK(same_bits(mine.values(), e.start));
    mine.set_gradient(e.gradients[0][rank]);
    run.step(e.rates[0]);
  });
  CHECK(failed == 2 * world);
  for (const std::string& sentence : said)
    CHECK(sentence == "slamb: the thread_group failed because rank 1 was aborted: no more");
}

namespace {

/// Rank 1 calls its second step with a wrong rate, and then `go_on`; the others take all steps.
template <class GoOn>
std::vector<std::string> said_of_rejected_step(const experiment& e, std::vector<std::vector<float>>& reached,
                                               const GoOn& go_on) {
  return said_by_ranks([&](thread_communicator communicator, std::size_t rank) {
    replica mine(e.tensors, e.start);
    slamb::lamb<thread_communicator> run(mine.parameters(), {}, std::move(communicator), one_thread());
    for (std::size_t t = 0; t < e.steps(); ++t) {
      mine.set_gradient(e.gradients[t][rank]);
      if (rank == 1 && t == 1) {
        CHECK_THROWS_WITH_AS(run.step(-1.0), "slamb: the learning rate = -1, but it must be in [0, 3.4e38]",
                             std::invalid_argument);
        if (!go_on(run)) return;
      }
      run.step(e.rates[t]);
    }
    reached[rank] = mine.values();
  });
}

}  // namespace

TEST_CASE("failed calls: a step that one rank rejects keeps the others waiting until it steps, leaves or aborts") {
  const experiment e = small_experiment();
  const auto expected = test_support::train(e, test_support::maker_of<slamb::lamb<thread_communicator>>({}));
  std::vector<std::vector<float>> reached(world);
  using optimizer = slamb::lamb<thread_communicator>;

  CHECK(said_of_rejected_step(e, reached, [](optimizer& /*run*/) { return true; }) == std::vector<std::string>(world));
  for (std::size_t rank = 0; rank < world; ++rank) CHECK(same_bits(reached[rank], expected.back()[rank]));

  const auto left = said_of_rejected_step(e, reached, [](optimizer& /*run*/) { return false; });
  CHECK(left[1].empty());
  for (const std::size_t rank : {0U, 2U})
    CHECK(left[rank].find("slamb: the thread_group failed because rank 1 left before the collective of the others") ==
          0);

  const auto aborted = said_of_rejected_step(e, reached, [](optimizer& run) {
    run.communicator().abort("its learning rate is wrong");
    return false;
  });
  for (const std::size_t rank : {0U, 2U})
    CHECK(aborted[rank] == "slamb: the thread_group failed because rank 1 was aborted: its learning rate is wrong");
}

}  // namespace faults_failed_calls_tests
