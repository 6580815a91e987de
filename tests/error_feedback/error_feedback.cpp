// ErrorFeedback: the facts of the shipped ones, the recipes' requirements, and a user-defined one in their place.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/archetype_policies.hpp"
#include "support/generate.hpp"
#include "support/quadratic.hpp"

namespace error_feedback_error_feedback_tests {
namespace {

using test_support::keeps_and_describes;
using test_support::keeps_with_settings;
using test_support::quadratic;

static_assert(slamb::error_feedback<slamb::no_error_feedback> && slamb::error_feedback<slamb::local_momentum>);
static_assert(!slamb::no_error_feedback::keeps_unsent && !slamb::no_error_feedback::worker_state);
static_assert(!slamb::no_error_feedback::server_state);
static_assert(slamb::local_momentum::keeps_unsent && !slamb::local_momentum::worker_state);
static_assert(!slamb::local_momentum::server_state);

// A type that lacks a fact, or has one that is not a truth value, is no ErrorFeedback.
struct lacks_server_state {
  static constexpr bool keeps_unsent = true;
  static constexpr bool worker_state = false;
};
struct says_it_in_words {
  static constexpr bool keeps_unsent = true;
  static constexpr bool worker_state = false;
  struct {
  } static constexpr server_state{};
};
struct cannot_be_copied : slamb::local_momentum {
  cannot_be_copied(cannot_be_copied&&) = default;
};
static_assert(!slamb::error_feedback<lacks_server_state> && !slamb::error_feedback<says_it_in_words>);
static_assert(!slamb::error_feedback<cannot_be_copied>);

using compressor = slamb::random_k<slamb::sampling::round_robin>;

template <class ErrorFeedback>
using slamb_with = slamb::slamb<compressor, ErrorFeedback, slamb::thread_communicator>;
template <class ErrorFeedback>
using lamb_with = slamb::lamb<ErrorFeedback, slamb::thread_communicator>;

quadratic problem(int ranks) { return {test_support::odd_tensors(), ranks}; }

/// Trains SLAMB with an error feedback that each rank constructs by `of_rank`.
template <class Make>
std::vector<std::vector<float>> train_slamb(int ranks, Make of_rank, double k = 0.2) {
  using error_feedback = decltype(of_rank(0));
  return test_support::train_ranks(problem(ranks), 30, 0.02, [&](auto parameters, auto communicator) {
    const int rank = communicator.rank();
    return slamb_with<error_feedback>(
        parameters, {.local_steps = 20, .dense_below = 16, .compressor = {.k = k}, .error_feedback = of_rank(rank)},
        std::move(communicator), {.threads = 1});
  });
}

template <class Make>
std::vector<std::vector<float>> train_lamb(int ranks, Make of_rank) {
  using error_feedback = decltype(of_rank(0));
  return test_support::train_ranks(problem(ranks), 30, 0.02, [&](auto parameters, auto communicator) {
    const int rank = communicator.rank();
    return lamb_with<error_feedback>(parameters, {.error_feedback = of_rank(rank)}, std::move(communicator),
                                     {.threads = 1});
  });
}

/// The difference between the mean momentum over ranks and the momentum of the mean gradient, with gradients that do not depend
/// on the training: the largest over all steps, relative to the largest momentum. `loses`: the unsent part is dropped.
double lost_momentum(int ranks, bool loses) {
  const std::size_t n = 200;
  const compressor sparse{.k = 0.1};
  std::vector<std::vector<double>> m(static_cast<std::size_t>(ranks), std::vector<double>(n));
  std::vector<double> dense(n);
  double worst = 0.0, largest = 0.0;
  for (std::uint64_t t = 1; t <= 30; ++t) {
    const auto g = test_support::widened(test_support::random_gradients(5, t, ranks, n));
    const auto selection = sparse.at(t);
    for (std::size_t j = 0; j < n; ++j) {
      double mean_g = 0.0, mean_m = 0.0;
      for (std::size_t r = 0; r < m.size(); ++r) {
        m[r][j] = 0.9 * m[r][j] + 0.1 * g[r][j];
        mean_g += g[r][j] / ranks;
        mean_m += m[r][j] / ranks;
      }
      dense[j] = 0.9 * dense[j] + 0.1 * mean_g;
      const bool sent = selection.selects({0, j, n, 0});
      for (auto& of_rank : m) of_rank[j] = sent ? mean_m : (loses ? 0.0 : of_rank[j]);
      double kept = 0.0;
      for (const auto& of_rank : m) kept += of_rank[j] / ranks;
      worst = std::max(worst, std::abs(kept - dense[j]));
      largest = std::max(largest, std::abs(dense[j]));
    }
  }
  return worst / largest;
}

}  // namespace

TEST_CASE("local_momentum: the mean of the ranks' momenta is the momentum of the mean gradient, for every selection") {
  CHECK(lost_momentum(3, false) < 1e-12);
  CHECK(lost_momentum(3, true) > 0.1);  // the measure finds a loss
}

TEST_CASE("error_feedback: a user-defined copy of local_momentum gives the same bits") {
  for (const int ranks : {1, 2, 3}) {
    const auto own = train_slamb(ranks, [](int) { return keeps_with_settings{}; });
    const auto shipped = train_slamb(ranks, [](int) { return slamb::local_momentum{}; });
    CHECK(own == shipped);
    CHECK(own != train_slamb(
                     ranks, [](int) { return slamb::local_momentum{}; }, 0.1));  // the comparison can fail
  }
}

TEST_CASE("error_feedback: LAMB without compression takes any error feedback") {
  const auto own = train_lamb(2, [](int) { return keeps_with_settings{}; });
  CHECK(own == train_lamb(2, [](int) { return slamb::no_error_feedback{}; }));
  CHECK(own == train_lamb(2, [](int) { return slamb::local_momentum{}; }));
}

TEST_CASE("error_feedback: a policy's own validation is called") {
  CHECK_THROWS_AS(train_slamb(2, [](int) { return keeps_with_settings{.strength = 0.5}; }), std::invalid_argument);
  CHECK_THROWS_AS(train_lamb(2, [](int) { return keeps_with_settings{.strength = 0.5}; }), std::invalid_argument);
}

TEST_CASE("error_feedback: settings that differ among ranks are found by name") {
  CHECK_NOTHROW(train_slamb(2, [](int) { return keeps_and_describes{.setting = 3}; }));
  CHECK_THROWS_AS(train_slamb(2, [](int rank) { return keeps_and_describes{.setting = rank}; }),
                  slamb::rank_mismatch_error);
  CHECK_THROWS_AS(train_lamb(2, [](int rank) { return keeps_and_describes{.setting = rank}; }),
                  slamb::rank_mismatch_error);
}

}  // namespace error_feedback_error_feedback_tests
