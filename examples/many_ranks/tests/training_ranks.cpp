// Ranks in threads: steps on demand, and the failures of one rank.
#include "../training_ranks.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <slamb/lamb.hpp>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace many_ranks_training_ranks_tests {

using many_ranks::training_ranks;

constexpr std::size_t size = 100;

/// A tensor of each rank, with gradients of 1.
struct tensors {
  std::vector<std::vector<float>> parameters, gradients;

  explicit tensors(int ranks)
      : parameters(static_cast<std::size_t>(ranks), std::vector<float>(size, 1.0F)), gradients(parameters) {}

  std::vector<slamb::parameter> parameters_of(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return {{.data = parameters[r].data(), .gradient = gradients[r].data(), .size = size}};
  }

  training_ranks::maker maker() {
    return [this](slamb::thread_communicator ranks) -> slamb::optimizer {
      const auto all = parameters_of(ranks.rank());
      return slamb::adamw<slamb::thread_communicator>(all, {.weight_decay = 0.0}, std::move(ranks), {.threads = 1});
    };
  }
};

/// In place of an optimizer.
slamb::optimizer fail(slamb::thread_communicator /*ranks*/) { throw std::runtime_error("made up"); }

TEST_CASE("training_ranks: every rank takes the steps, and rank 0 counts its bytes") {
  for (const int ranks : {1, 3, 64}) {
    tensors of(ranks);
    training_ranks all(ranks, of.maker());
    CHECK(all.sent_bytes() == 0);
    all.step(0.25);
    all.step(0.25);
    for (const auto& parameters : of.parameters)
      for (const float p : parameters) CHECK(p == doctest::Approx(0.5));  // Adam's steps have the length of the rate
    CHECK((all.sent_bytes() > 0) == (ranks > 1));
  }
}

TEST_CASE("training_ranks: a rank that cannot be made ends the others, and its exception arrives") {
  for (const int failing : {0, 2}) {
    tensors of(3);
    const auto make = of.maker();
    const auto make_but_one = [&](slamb::thread_communicator ranks) {
      return ranks.rank() == failing ? fail(std::move(ranks)) : make(std::move(ranks));
    };
    CHECK_THROWS_WITH_AS(training_ranks(3, make_but_one), "made up", std::runtime_error);
  }
  CHECK_THROWS_AS(training_ranks(65, tensors(1).maker()), std::invalid_argument);
  CHECK_THROWS_AS(training_ranks(0, tensors(1).maker()), std::invalid_argument);
}

TEST_CASE("training_ranks: after a step that failed, all ranks have ended, and calls throw the same") {
  for (const int diverged : {0, 2}) {
    tensors of(3);
    training_ranks all(3, of.maker());
    of.parameters[static_cast<std::size_t>(diverged)][5] = 7.0F;
    CHECK_THROWS_AS(all.step(0.25), slamb::rank_mismatch_error);
    CHECK_THROWS_AS(all.step(0.25), slamb::rank_mismatch_error);
    CHECK_THROWS_AS(all.sent_bytes(), slamb::rank_mismatch_error);
  }
}

/// Its rank 1 throws in its next collective once `fails` is true.
struct failing_communicator {
  slamb::thread_communicator ranks;
  const bool* fails;

  int rank() const { return ranks.rank(); }
  int size() const { return ranks.size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    if (*fails && rank() == 1) throw std::runtime_error("made up");
    ranks.all_reduce_sum(values, stream);
  }
};

TEST_CASE("training_ranks: a rank that fails in a step alone ends the others, and its exception arrives") {
  tensors of(3);
  bool fails = false;
  const auto make = [&](slamb::thread_communicator ranks) -> slamb::optimizer {
    const auto all = of.parameters_of(ranks.rank());
    return slamb::adamw<failing_communicator>(all, {}, {std::move(ranks), &fails}, {.threads = 1});
  };
  training_ranks all(3, make);
  all.step(0.25);
  fails = true;
  CHECK_THROWS_WITH_AS(all.step(0.25), "made up", std::runtime_error);
  CHECK_THROWS_WITH_AS(all.step(0.25), "made up", std::runtime_error);
}

}  // namespace many_ranks_training_ranks_tests
