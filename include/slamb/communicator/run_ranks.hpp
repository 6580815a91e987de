// Starts the ranks of a thread_group, a thread each, and hands on what went wrong first.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/communicator/thread_communicator.hpp"

namespace slamb {

/// Calls `body(thread_communicator)` for each rank of `group` at once, each on its own thread, and joins them.
///
/// @throws what a rank threw first, not what its peers threw because of it
/// @throws std::invalid_argument if a rank has a communicator; communicator_error if the group has failed before
template <class F>
requires std::invocable<F&, thread_communicator>
void run_ranks(thread_group& group, F&& body) {
  std::vector<thread_communicator> communicators;
  communicators.reserve(static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) communicators.push_back(group.communicator(rank));

  std::mutex mutex;
  std::vector<std::pair<int, std::exception_ptr>> failures;  // [rank, exception] in the order of time
  const auto run_rank = [&](thread_communicator communicator) {
    const int rank = communicator.rank();
    try {
      std::invoke(body, std::move(communicator));
    } catch (...) {
      const std::lock_guard lock(mutex);
      failures.emplace_back(rank, std::current_exception());
    }
  };

  std::vector<std::jthread> threads;  // which join when they are destroyed
  threads.reserve(communicators.size());
  try {
    for (thread_communicator& communicator : communicators) threads.emplace_back(run_rank, std::move(communicator));
  } catch (...) {
    group.abort("a thread could not be started");
    throw;
  }
  threads.clear();
  const auto cause = std::find_if(failures.begin(), failures.end(),
                                  [&](const auto& failure) { return group.failed_because_of(failure.first); });
  if (cause != failures.end()) std::rethrow_exception(cause->second);
  if (!failures.empty()) std::rethrow_exception(failures.front().second);
}

/// The same with a group of its own.
///
/// @throws std::invalid_argument if `size` is not in [1, 64] or the timeout is not positive
template <class F>
requires std::invocable<F&, thread_communicator>
void run_ranks(int size, F&& body, thread_options options = {}) {
  thread_group group(size, options);
  run_ranks(group, body);
}

}  // namespace slamb
