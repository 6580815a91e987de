// Where the ranks of a thread_group meet: who has arrived with which call, who has left, and why the group failed.
// It holds no payload. thread_communicator.hpp does the work between `meet` and `part`.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/thread_options.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// "rank 2", "ranks 0, 2, 5", of the bits set.
inline std::string ranks_to_text(std::uint64_t ranks) {
  std::string text = std::popcount(ranks) == 1 ? "rank" : "ranks";
  for (const char* separator = " "; ranks != 0; ranks &= ranks - 1, separator = ", ") {
    text += separator + std::to_string(std::countr_zero(ranks));
  }
  return text;
}

/// What a rank shows its peers while they meet.
struct rendezvous_post {
  collective_call call;
  const void* in = nullptr;
  void* out = nullptr;
};

/// The state ranks share. A collective is `meet`, work on all posts that neither blocks nor throws, and `part`. Only
/// `meet` can fail, on all ranks or on none, so that no buffer is let go of while a peer works on it.
class thread_rendezvous {
 public:
  static constexpr int max_size = 64;

  thread_rendezvous(int size, thread_options options)
      : size_(size), timeout_(std::min<std::chrono::milliseconds>(options.timeout, std::chrono::hours(24 * 365))) {
    require_in(size >= 1 && size <= max_size, "thread_group size", size, "in [1, 64]");
    require_in(timeout_.count() > 0, "thread_options::timeout", static_cast<double>(timeout_.count()), "> 0 ms");
    posts_.resize(static_cast<std::size_t>(size));
    rounds_.resize(static_cast<std::size_t>(size));
    everyone_ = ~std::uint64_t{0} >> (max_size - size);
  }

  int size() const noexcept { return size_; }

  void require_rank(const char* name, int rank) const {
    if (rank >= 0 && rank < size_) return;
    throw_out_of_range(name, rank, "in [0, " + std::to_string(size_) + ")");
  }

  void join(int rank) {
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

  void leave(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    joined_ &= ~bit(rank);
    left_ |= bit(rank);
    if (arrived_ != 0 && !failed_) fail_for_those_who_left();
  }

  /// The group fails, unless it has failed before: every rank that waits or calls from now on throws `reason`.
  void fail(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    fail_locked(reason, 0);
  }

  /// The same because of a fault of `rank`, whose own exception is more specific than those of its peers.
  void fail_because_of(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    fail_locked(ranks_to_text(bit(rank)) + " " + what, bit(rank));
  }

  bool is_culprit(int rank) const {
    const std::lock_guard lock(mutex_);
    return (culprits_ & bit(rank)) != 0;
  }

  std::string reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

  void inject(const thread_fault& planned) {
    require_rank("fault::rank", planned.rank);
    const std::lock_guard lock(mutex_);
    faults_.push_back(planned);
  }

  /// Counts a call of `rank`, and returns the fault that is planned for it.
  std::optional<thread_fault::kind_type> start_call(int rank) {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    const std::uint64_t round = rounds_[static_cast<std::size_t>(rank)]++;
    for (const thread_fault& planned : faults_) {
      if (planned.rank == rank && planned.round == round) return planned.kind;
    }
    return std::nullopt;
  }

  [[noreturn]] void stall(int rank, const collective_call& call) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 2 * timeout_, [&] { return failed_.load(); })) {
      if (arrived_ == 0)
        fail_locked(ranks_to_text(bit(rank)) + " stalled in " + to_text(call) + ", and no peer waited for it",
                    bit(rank));
      changed_.wait(lock, [&] { return failed_.load(); });  // peers came late, and wait up to their own timeout
    }
    throw communicator_error(reason_);
  }

  /// Waits until all ranks have come with the same call. After it the posts of all ranks may be read, until `part`.
  void meet(int rank, const rendezvous_post& mine) {
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

  /// Waits until all ranks have done their work. It does not time out: that work cannot stop half-way.
  void part(int rank) noexcept {
    std::unique_lock lock(mutex_);
    arrived_ |= bit(rank);
    if (arrived_ == everyone_) return release(lock);
    const std::uint64_t before = generation_;
    if (!peers_come_soon(lock, before)) changed_.wait(lock, [&] { return generation_ != before; });
  }

  const rendezvous_post& post(int rank) const noexcept { return posts_[static_cast<std::size_t>(rank)]; }

 private:
  static constexpr std::uint64_t bit(int rank) noexcept { return std::uint64_t{1} << rank; }

  void throw_if_failed() const {
    if (failed_) throw communicator_error(reason_);
  }

  bool calls_agree() const {
    return std::all_of(posts_.begin(), posts_.end(), [&](const auto& post) { return post.call == posts_[0].call; });
  }

  /// "ranks 0, 1 called all_reduce_sum of 100 float32; rank 2 called all_gather of 7 float32".
  std::string arrived_to_text() const {
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

  void fail_for_those_who_left() {
    fail_locked(ranks_to_text(left_) + " left before the collective of the others: " + arrived_to_text(), left_);
  }

  void fail_for_timeout() {
    fail_locked("after " + std::to_string(timeout_.count()) + " ms " + ranks_to_text(everyone_ & ~arrived_) +
                    " had not arrived in the collective of the others: " + arrived_to_text(),
                0);
  }

  void fail_locked(const std::string& reason, std::uint64_t culprits) {
    if (failed_) return;
    reason_ = "slamb: the thread_group failed because " + reason;
    culprits_ = culprits;
    failed_ = true;
    changed_.notify_all();
  }

  void release(std::unique_lock<std::mutex>& lock) {
    arrived_ = 0;
    generation_.fetch_add(1, std::memory_order_release);
    lock.unlock();
    changed_.notify_all();
  }

  /// Lets peers run first, since a wake-up costs more than most waits. True, unlocked, if all have arrived; else
  /// locked.
  bool peers_come_soon(std::unique_lock<std::mutex>& lock, std::uint64_t before) {
    lock.unlock();
    for (int i = 0; i < yields_before_sleep; ++i) {
      if (generation_.load(std::memory_order_acquire) != before) return true;
      std::this_thread::yield();
    }
    lock.lock();
    return false;
  }

  static constexpr int yields_before_sleep = 32;

  const int size_;
  const std::chrono::milliseconds timeout_;
  std::uint64_t everyone_ = 0;  // one bit a rank, as in joined_, left_ and arrived_

  mutable std::mutex mutex_;  // guards what follows; posts_ also belong to all ranks between meet and part
  std::condition_variable changed_;
  std::atomic<std::uint64_t> generation_{0};  // of meets and parts
  std::atomic<bool> failed_{false};
  std::string reason_;
  std::uint64_t culprits_ = 0;  // ranks whose own exceptions are more specific than those of their peers
  std::uint64_t joined_ = 0;
  std::uint64_t left_ = 0;
  std::uint64_t arrived_ = 0;
  std::vector<rendezvous_post> posts_;  // [size]
  std::vector<std::uint64_t> rounds_;   // [size] calls started
  std::vector<thread_fault> faults_;
};

}  // namespace slamb::detail
