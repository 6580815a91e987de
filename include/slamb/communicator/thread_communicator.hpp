// N ranks in one process, a thread each: a Communicator for tests, examples and machines of many cores. Ranks share pointers to
// their buffers and work on them directly, between two barriers, so it makes no unnecessary copies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/rank_sums.hpp"
#include "slamb/communicator/detail/thread_rendezvous.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// One rank of a thread_group: a handle to be moved to the rank's thread, or into its optimizer.
///
/// All ranks make the same collectives in the same order, each from one thread at a time. A call returns when all ranks are
/// done with the buffers. Buffers are host memory of any alignment; those of different ranks do not overlap. A rank leaves the
/// group when its handle is destroyed; a peer that waits for it then fails. Moving the handle does not make the rank leave.
///
/// Every collective
/// @throws std::invalid_argument for a wrong root or sizes that do not fit, before it waits; the group has then failed
/// @throws communicator_error on every rank, if ranks call different collectives or different sizes, if a peer has left or does
///   not come within `thread_options::timeout`, or if the group has failed before. A failed group stays failed: each later call
///   throws the first reason. The buffers do not change.
///
/// *Cost*: two barriers of the ranks; memory only on the stack.
/// *Determinism*: sums are made in rank order, element by element. Sums of floats are made in double precision and rounded
/// once. They have the same bits on all ranks and in every run.
class thread_communicator {
 public:
  thread_communicator(thread_communicator&&) noexcept = default;
  thread_communicator& operator=(thread_communicator other) noexcept {  // the previous rank leaves, with `other`
    std::swap(rendezvous_, other.rendezvous_);
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~thread_communicator() {
    if (rendezvous_) rendezvous_->leave(rank_);
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// `values` [n] become their sum over ranks, ((x₀ + x₁) + x₂) + …; integers wrap around.
  template <detail::summable T>
  void all_reduce_sum(std::span<T> values, host_stream /*stream*/) {
    const std::size_t n = values.size();
    run<T>({.kind = collective::all_reduce, .count = n}, values, values, [&] {
      // Each rank sums one chunk of whole cache lines, so that ranks do not write to the same line.
      constexpr std::size_t line = std::max<std::size_t>(1, 64 / sizeof(T));
      const std::size_t lines = (n + line - 1) / line;
      const std::size_t ranks = static_cast<std::size_t>(size_);
      const std::size_t chunk = (lines + ranks - 1) / ranks * line;
      const std::size_t begin = std::min(n, static_cast<std::size_t>(rank_) * chunk);
      if (size_ == 1) return;
      detail::sum_over_ranks<T>(
          size_, begin, std::min(n, begin + chunk),
          [&](int rank) { return static_cast<const T*>(rendezvous_->post(rank).in); },
          [&](std::size_t first, const T* sums, std::size_t count) {
            for (int rank = 0; rank < size_; ++rank) {
              detail::copy_bytes(static_cast<T*>(rendezvous_->post(rank).out) + first, sums, count * sizeof(T));
            }
          });
    });
  }

  /// `values` [n] become those of rank `root`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void broadcast(std::span<T> values, int root, host_stream /*stream*/) {
    require_fit(detail::broadcast_fault(root, size_));
    const std::span<const T> sent = root == rank_ ? values : std::span<T>{};
    run<T>({.kind = collective::broadcast, .count = values.size(), .root = root}, sent, values,
           [&] { detail::copy_bytes(values.data(), rendezvous_->post(root).in, values.size_bytes()); });
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order. `mine` may be its own place in `all`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_gather(std::span<const T> mine, std::span<T> all, host_stream /*stream*/) {
    const std::size_t ranks = static_cast<std::size_t>(size_);
    require_fit(detail::all_gather_fault(mine.size(), all.size(), size_));
    run<T>({.kind = collective::all_gather, .count = mine.size()}, mine, all, [&] {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const void* theirs = rendezvous_->post(static_cast<int>(rank)).in;
        detail::copy_bytes(all.data() + rank * mine.size(), theirs, mine.size_bytes());
      }
    });
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; the two do not overlap.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_to_all(std::span<const T> send, std::span<T> receive, host_stream /*stream*/) {
    const std::size_t ranks = static_cast<std::size_t>(size_);
    require_fit(detail::all_to_all_fault(send.size(), receive.size(), size_));
    const std::size_t chunk = send.size() / ranks;
    run<T>({.kind = collective::all_to_all, .count = send.size()}, send, receive, [&] {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const T* theirs = static_cast<const T*>(rendezvous_->post(static_cast<int>(rank)).in);
        const T* mine = theirs + static_cast<std::size_t>(rank_) * chunk;
        detail::copy_bytes(receive.data() + rank * chunk, mine, chunk * sizeof(T));
      }
    });
  }

  /// The group fails with `reason`, which every later call of any rank throws. For a rank that cannot go on. Does nothing if
  /// the group has failed before, or this was moved from.
  void abort(const std::string& reason) {
    if (rendezvous_) rendezvous_->fail_because_of(rank_, "was aborted: " + reason);
  }

 private:
  friend class thread_group;

  thread_communicator(std::shared_ptr<detail::thread_rendezvous> rendezvous, int rank)
      : rendezvous_(std::move(rendezvous)), rank_(rank), size_(rendezvous_ ? rendezvous_->size() : 1) {}

  /// A wrong argument is this rank's mistake. The group fails, so that the others do not wait for it.
  void require_fit(const std::string& fault) {
    if (fault.empty()) return;
    if (rendezvous_) rendezvous_->fail_because_of(rank_, "called " + fault);
    throw std::invalid_argument("slamb: " + fault);
  }

  /// One collective: injected faults, `meet`, the work of this rank (which neither blocks nor throws), `part`.
  template <class T, class Work>
  void run(detail::collective_call call, std::span<const T> in, std::span<T> out, Work work) {
    if (!rendezvous_) throw communicator_error("slamb: a thread_communicator was called after it was moved from");
    call.family = detail::element_family<T>();
    call.element_size = sizeof(T);
    detail::rendezvous_post post{call, in.data(), out.data()};
    std::vector<std::byte> wrong;  // the corrupted payload, if a fault corrupts it
    const std::optional<detail::thread_fault::kind_type> planned = rendezvous_->start_call(rank_);
    if (planned == detail::thread_fault::kind_type::throws) {
      rendezvous_->fail_because_of(rank_, "threw, by an injected fault, in " + to_text(call));
      throw communicator_error(rendezvous_->reason());
    }
    if (planned == detail::thread_fault::kind_type::stalls) rendezvous_->stall(rank_, call);
    if (planned == detail::thread_fault::kind_type::corrupts && !in.empty()) {
      if (in.data() != out.data()) {
        wrong.resize(in.size_bytes());
        detail::copy_bytes(wrong.data(), in.data(), in.size_bytes());
        post.in = wrong.data();
      }
      std::memset(wrong.empty() ? static_cast<void*>(out.data()) : wrong.data(), 0xFF, sizeof(T));
    }
    rendezvous_->meet(rank_, post);
    work();
    rendezvous_->part(rank_);
    if (planned == detail::thread_fault::kind_type::corrupts_result && !out.empty())
      std::memset(static_cast<void*>(out.data()), 0xFF, sizeof(T));
  }

  std::shared_ptr<detail::thread_rendezvous> rendezvous_;
  int rank_;
  int size_;
};

/// The ranks of one process. The group may be destroyed before its communicators, because they share its state.
class thread_group {
 public:
  using fault = detail::thread_fault;  ///< a failure planned for one call of one rank, for tests

  /// @throws std::invalid_argument if `size` is not in [1, 64] or the timeout is not positive
  explicit thread_group(int size, thread_options options = {})
      : rendezvous_(std::make_shared<detail::thread_rendezvous>(size, options)) {}

  int size() const noexcept { return rendezvous_->size(); }

  /// The handle of `rank`, one at a time. A rank that has left may join again, unless the group has failed. All ranks must have
  /// joined again before any of them makes a collective.
  /// @throws std::invalid_argument if `rank` is not in [0, size()) or its handle is still alive
  /// @throws communicator_error if the group has failed
  thread_communicator communicator(int rank) {
    rendezvous_->join(rank);
    return {rendezvous_, rank};
  }

  /// Plans a failure. Each fault happens once, at the rank and round that it names.
  /// @throws std::invalid_argument if the fault's rank is not in [0, size())
  void inject(const fault& planned) { rendezvous_->inject(planned); }

  /// The group fails with `reason`. May be called from any thread. Ranks that wait for a peer throw communicator_error, and
  /// every later call throws too. A collective that all ranks have reached is still completed on all of them.
  void abort(const std::string& reason) { rendezvous_->fail("it was aborted: " + reason); }

  /// True if a failure of `rank` made the group fail: its exception is then the cause of its peers' exceptions.
  bool failed_because_of(int rank) const { return rendezvous_->is_culprit(rank); }

 private:
  std::shared_ptr<detail::thread_rendezvous> rendezvous_;
};

static_assert(capability::has_all_reduce_sum<thread_communicator, float>);
static_assert(capability::has_all_gather<thread_communicator, float>);
static_assert(capability::has_all_to_all<thread_communicator, float>);
static_assert(capability::has_broadcast<thread_communicator, float>);

}  // namespace slamb
