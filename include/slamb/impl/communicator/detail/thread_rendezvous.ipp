#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "slamb/communicator/detail/thread_rendezvous.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

SLAMB_DECL std::string ranks_to_text(std::uint64_t ranks) {
  std::string text = std::popcount(ranks) == 1 ? "rank" : "ranks";
  for (const char* separator = " "; ranks != 0; ranks &= ranks - 1, separator = ", ") {
    text += separator + std::to_string(std::countr_zero(ranks));
  }
  return text;
}

SLAMB_DECL thread_rendezvous::thread_rendezvous(int size, thread_options options)
    : size_(size), timeout_(std::min<std::chrono::milliseconds>(options.timeout, std::chrono::hours(24 * 365))) {
  require_in(size >= 1 && size <= max_size, "thread_group size", size, "in [1, 64]");
  require_in(timeout_.count() > 0, "thread_options::timeout", static_cast<double>(timeout_.count()), "> 0 ms");
  posts_.resize(static_cast<std::size_t>(size));
  rounds_.resize(static_cast<std::size_t>(size));
  everyone_ = ~std::uint64_t{0} >> (max_size - size);
}

SLAMB_DECL void thread_rendezvous::require_rank(const char* name, int rank) const {
  if (rank >= 0 && rank < size_) return;
  throw_out_of_range(name, rank, "in [0, " + std::to_string(size_) + ")");
}

SLAMB_DECL void thread_rendezvous::join(int rank) {
  require_rank("rank", rank);
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  if ((joined_ & bit(rank)) != 0) {
    throw std::invalid_argument("slamb: rank " + std::to_string(rank) +
                                " of the thread_group already has a communicator");
  }
  joined_ |= bit(rank);
  left_ &= ~bit(rank);
}

SLAMB_DECL void thread_rendezvous::leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  joined_ &= ~bit(rank);
  left_ |= bit(rank);
  if (arrived_ != 0 && !failed_) fail_for_those_who_left();
}

SLAMB_DECL void thread_rendezvous::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail_locked(reason, 0);
}

SLAMB_DECL void thread_rendezvous::fail_because_of(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  fail_locked(ranks_to_text(bit(rank)) + " " + what, bit(rank));
}

SLAMB_DECL bool thread_rendezvous::is_culprit(int rank) const {
  const std::lock_guard lock(mutex_);
  return (culprits_ & bit(rank)) != 0;
}

SLAMB_DECL std::string thread_rendezvous::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

SLAMB_DECL void thread_rendezvous::inject(const thread_fault& planned) {
  require_rank("fault::rank", planned.rank);
  const std::lock_guard lock(mutex_);
  faults_.push_back(planned);
}

SLAMB_DECL std::optional<thread_fault::kind_type> thread_rendezvous::start_call(int rank) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  const std::uint64_t round = rounds_[static_cast<std::size_t>(rank)]++;
  for (const thread_fault& planned : faults_) {
    if (planned.rank == rank && planned.round == round) return planned.kind;
  }
  return std::nullopt;
}

SLAMB_DECL void thread_rendezvous::stall(int rank, const collective_call& call) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, 2 * timeout_, [&] { return failed_.load(); })) {
    if (arrived_ == 0)
      fail_locked(ranks_to_text(bit(rank)) + " stalled in " + to_text(call) + ", and no peer waited for it", bit(rank));
    changed_.wait(lock, [&] { return failed_.load(); });  // peers came late, and wait up to their own timeout
  }
  throw communicator_error(reason_);
}

SLAMB_DECL void thread_rendezvous::meet(int rank, const rendezvous_post& mine) {
  std::unique_lock lock(mutex_);
  throw_if_failed();
  posts_[static_cast<std::size_t>(rank)] = mine;
  arrived_ |= bit(rank);
  const std::uint64_t before = generation_;
  if (left_ != 0) {
    fail_for_those_who_left();
  } else if (arrived_ == everyone_) {
    if (calls_agree()) return release(lock);
    fail_locked("ranks called different collectives: " + arrived_to_text(), 0);
  } else {
    if (peers_come_soon(lock, before)) return;
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    if (!changed_.wait_until(lock, deadline, [&] { return generation_ != before || failed_; })) fail_for_timeout();
  }
  if (generation_ == before) throw communicator_error(reason_);
}

SLAMB_DECL void thread_rendezvous::part(int rank) noexcept {
  std::unique_lock lock(mutex_);
  arrived_ |= bit(rank);
  if (arrived_ == everyone_) return release(lock);
  const std::uint64_t before = generation_;
  if (!peers_come_soon(lock, before)) changed_.wait(lock, [&] { return generation_ != before; });
}

SLAMB_DECL void thread_rendezvous::throw_if_failed() const {
  if (failed_) throw communicator_error(reason_);
}

SLAMB_DECL bool thread_rendezvous::calls_agree() const {
  return std::all_of(posts_.begin(), posts_.end(), [&](const auto& post) { return post.call == posts_[0].call; });
}

SLAMB_DECL std::string thread_rendezvous::arrived_to_text() const {
  std::string text;
  for (std::uint64_t left = arrived_; left != 0;) {
    const collective_call& call = post(std::countr_zero(left)).call;
    std::uint64_t alike = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if ((left & bit(rank)) != 0 && post(rank).call == call) alike |= bit(rank);
    }
    text += (text.empty() ? "" : "; ") + ranks_to_text(alike) + " called " + to_text(call);
    left &= ~alike;
  }
  return text;
}

SLAMB_DECL void thread_rendezvous::fail_for_those_who_left() {
  fail_locked(ranks_to_text(left_) + " left before the collective of the others: " + arrived_to_text(), left_);
}

SLAMB_DECL void thread_rendezvous::fail_for_timeout() {
  fail_locked("after " + std::to_string(timeout_.count()) + " ms " + ranks_to_text(everyone_ & ~arrived_) +
                  " had not arrived in the collective of the others: " + arrived_to_text(),
              0);
}

SLAMB_DECL void thread_rendezvous::fail_locked(const std::string& reason, std::uint64_t culprits) {
  if (failed_) return;
  reason_ = "slamb: the thread_group failed because " + reason;
  culprits_ = culprits;
  failed_ = true;
  changed_.notify_all();
}

SLAMB_DECL void thread_rendezvous::release(std::unique_lock<std::mutex>& lock) {
  arrived_ = 0;
  generation_.fetch_add(1, std::memory_order_release);
  lock.unlock();
  changed_.notify_all();
}

SLAMB_DECL bool thread_rendezvous::peers_come_soon(std::unique_lock<std::mutex>& lock, std::uint64_t before) {
  lock.unlock();
  for (int i = 0; i < yields_before_sleep; ++i) {
    if (generation_.load(std::memory_order_acquire) != before) return true;
    std::this_thread::yield();
  }
  lock.lock();
  return false;
}

}  // namespace slamb::detail
