// Runs a function on every rank of a thread_group, one thread per rank, and rethrows the first failure.
#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/config.hpp"

namespace slamb {

namespace detail {

/// The threads of a group's ranks. Not a template over the body, so that it is compiled once.
class rank_threads {
 public:
  using body_type = void (*)(const void* context, thread_communicator communicator);

  rank_threads(thread_group& group, body_type body, const void* context)
      : group_(group), body_(body), context_(context) {}

  /// Runs all ranks to their end; see `run_ranks`.
  void run();

 private:
  struct failure {
    int rank;
    std::exception_ptr what;
  };

  void run_rank(thread_communicator communicator);

  void rethrow_cause() const;

  thread_group& group_;
  body_type body_;
  const void* context_;
  std::mutex mutex_;
  std::vector<failure> failures_;  // in the order of time
};

}  // namespace detail

/// Calls `body(thread_communicator)` for each rank of `group` at once, each on its own thread, and joins them.
///
/// @throws the exception of the rank that failed first, not those that its peers threw because of it
/// @throws std::invalid_argument if a rank already has a communicator; communicator_error if the group has failed before
template <class F>
requires std::invocable<F&, thread_communicator>
void run_ranks(thread_group& group, F&& body) {
  const auto call = [&body](thread_communicator communicator) { std::invoke(body, std::move(communicator)); };
  detail::rank_threads(
      group,
      [](const void* context, thread_communicator communicator) {
        (*static_cast<const decltype(call)*>(context))(std::move(communicator));
      },
      &call)
      .run();
}

/// Calls `body(thread_communicator)` for each of `size` ranks, in a group of its own.
///
/// @throws std::invalid_argument if `size` is not in [1, 64] or the timeout is not positive
template <class F>
requires std::invocable<F&, thread_communicator>
void run_ranks(int size, F&& body, thread_options options = {}) {
  thread_group group(size, options);
  run_ranks(group, body);
}

}  // namespace slamb

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/communicator/run_ranks.ipp"
#endif
