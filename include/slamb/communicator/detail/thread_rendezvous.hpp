// The meeting point of the ranks of a thread_group: who has arrived with which call, who has left, and why the group failed.
// It holds no payload. thread_communicator.hpp does the work between `meet` and `part`.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/thread_options.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// "rank 2", "ranks 0, 2, 5", of the bits set.
std::string ranks_to_text(std::uint64_t ranks);

/// The call and the buffers that a rank shows its peers while they meet.
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

  thread_rendezvous(int size, thread_options options);

  int size() const noexcept { return size_; }

  void require_rank(const char* name, int rank) const;

  void join(int rank);

  void leave(int rank) noexcept;

  /// The group fails, unless it has failed before: every rank that waits or calls from now on throws `reason`.
  void fail(const std::string& reason);

  /// The same because of a fault of `rank`, whose own exception is more specific than those of its peers.
  void fail_because_of(int rank, const std::string& what);

  bool is_culprit(int rank) const;

  std::string reason() const;

  void inject(const thread_fault& planned);

  /// Counts a call of `rank`, and returns the fault that is planned for it.
  std::optional<thread_fault::kind_type> start_call(int rank);

  [[noreturn]] void stall(int rank, const collective_call& call);

  /// Waits until all ranks have come with the same call. After it the posts of all ranks may be read, until `part`.
  void meet(int rank, const rendezvous_post& mine);

  /// Waits until all ranks have done their work. It does not time out: that work cannot stop half-way.
  void part(int rank) noexcept;

  const rendezvous_post& post(int rank) const noexcept { return posts_[static_cast<std::size_t>(rank)]; }

 private:
  static constexpr std::uint64_t bit(int rank) noexcept { return std::uint64_t{1} << rank; }

  void throw_if_failed() const;

  bool calls_agree() const;

  /// "ranks 0, 1 called all_reduce_sum of 100 float32; rank 2 called all_gather of 7 float32".
  std::string arrived_to_text() const;

  void fail_for_those_who_left();

  void fail_for_timeout();

  void fail_locked(const std::string& reason, std::uint64_t culprits);

  void release(std::unique_lock<std::mutex>& lock);

  /// Lets peers run first, since a wake-up costs more than most waits. True, unlocked, if all have arrived; else
  /// locked.
  bool peers_come_soon(std::unique_lock<std::mutex>& lock, std::uint64_t before);

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

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/communicator/detail/thread_rendezvous.ipp"
#endif
