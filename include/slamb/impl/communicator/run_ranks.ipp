#pragma once

#include <algorithm>
#include <thread>
#include <utility>

#include "slamb/communicator/run_ranks.hpp"

namespace slamb::detail {

SLAMB_DECL void rank_threads::run() {
  std::vector<thread_communicator> communicators;
  communicators.reserve(static_cast<std::size_t>(group_.size()));
  for (int rank = 0; rank < group_.size(); ++rank) communicators.push_back(group_.communicator(rank));
  std::vector<std::thread> threads;
  threads.reserve(communicators.size());
  try {
    for (thread_communicator& communicator : communicators)
      threads.emplace_back(&rank_threads::run_rank, this, std::move(communicator));
  } catch (...) {
    group_.abort("a thread could not be started");
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  for (std::thread& thread : threads) thread.join();
  rethrow_cause();
}

SLAMB_DECL void rank_threads::run_rank(thread_communicator communicator) {
  const int rank = communicator.rank();
  try {
    body_(context_, std::move(communicator));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failures_.push_back({rank, std::current_exception()});
  }
}

SLAMB_DECL void rank_threads::rethrow_cause() const {
  if (failures_.empty()) return;
  const auto cause = std::find_if(failures_.begin(), failures_.end(),
                                  [this](const failure& f) { return group_.failed_because_of(f.rank); });
  std::rethrow_exception(cause != failures_.end() ? cause->what : failures_.front().what);
}

}  // namespace slamb::detail
