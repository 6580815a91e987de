// A stand-in for a device that runs behind the host: it emulates kernels only when the host waits for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "slamb/backend/cuda/emulated_backend.hpp"
#include "slamb/communicator/thread_communicator.hpp"
#include "slamb/core/error.hpp"
#include "slamb/slamb.hpp"

namespace test_support {

/// The enqueued work of one rank.
class work_queue {
 public:
  static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

  std::size_t downloads = 0;      ///< each waits for all enqueued work
  std::size_t waits_for_all = 0;  ///< by the communicator
  std::size_t waits_for_part = 0;
  std::size_t longest = 0;      ///< the most pieces of work that have waited
  std::size_t bare_waits = 0;   ///< waits for a part, without the communicator
  bool peers_are_gone = false;  ///< the communicator throws when it is asked to wait
  bool reads_fail = false;      ///< the device throws when it is asked to read later

  template <class Work>
  void add(Work work) {
    work_.emplace_back(std::move(work));
    longest = std::max(longest, work_.size());
  }
  /// Runs what was added last before all else.
  void run_last() {
    const std::function<void()> last = std::move(work_.back());
    work_.pop_back();
    ++done_;
    last();
  }
  /// Pieces of work: finished ones, and all that were enqueued.
  std::uint64_t done() const noexcept { return done_; }
  std::uint64_t size() const noexcept { return done_ + work_.size(); }

  void run_to(std::uint64_t end) {
    while (done_ < end && !work_.empty()) {
      const std::function<void()> first = std::move(work_.front());
      work_.pop_front();
      ++done_;
      first();
    }
  }

 private:
  std::deque<std::function<void()>> work_;
  std::uint64_t done_ = 0;
};

/// A queue, up to a given piece of work.
struct deferred_stream {
  work_queue* queue = nullptr;
  std::uint64_t end = work_queue::all;
};

/// The emulator, on such a queue.
class deferring_emulator {
 public:
  explicit deferring_emulator(work_queue& queue) : queue_(&queue) {}

  deferred_stream stream() const noexcept { return {queue_}; }
  static bool is_capturing() noexcept { return false; }
  static void require_memory(const void* /*memory*/, const char* /*what*/) noexcept {}
  void clear(std::span<std::byte> memory) const {
    queue_->add([memory] { slamb::detail::cuda::emulator::clear(memory); });
  }
  void upload(std::span<const std::byte> from, std::span<std::byte> to) const {
    queue_->add([staged = std::vector<std::byte>(from.begin(), from.end()), to] {
      slamb::detail::cuda::emulator::upload(staged, to);
    });
  }
  void download(std::span<const std::byte> from, std::span<std::byte> to) const {
    ++queue_->downloads;
    queue_->run_to(work_queue::all);
    slamb::detail::cuda::emulator::download(from, to);
  }
  template <class T>
  void read_later(const T* from, slamb::detail::late_read<deferred_stream, T>& late) const {
    if (queue_->reads_fail) throw slamb::error("the device reads nothing");
    late.start(from);
  }
  template <class Kernel>
  void launch(const Kernel& kernel, std::size_t work) const {
    queue_->add([kernel, work] { slamb::detail::cuda::emulator(2).launch(kernel, work); });
  }

 private:
  work_queue* queue_;
};

struct deferred_backend {
  work_queue* queue = nullptr;
  std::size_t cache_bytes = 1U << 20U;
  slamb::allocator memory = slamb::detail::host_allocator();

  using stream_type = deferred_stream;
  using launcher_type = slamb::detail::cuda::stream_launcher<deferring_emulator>;

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const { return launcher_type(deferring_emulator(*queue)); }
};

/// The communicator of threads, with enqueued collectives. It must not move while work is enqueued.
class deferred_communicator {
 public:
  explicit deferred_communicator(slamb::thread_communicator base)
      : base_(std::make_shared<slamb::thread_communicator>(std::move(base))) {}

  int rank() const noexcept { return base_->rank(); }
  int size() const noexcept { return base_->size(); }

  void all_reduce_sum(std::span<float> values, deferred_stream on) {
    on.queue->add([values, base = base_] { base->all_reduce_sum(values, {}); });
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, deferred_stream on) {
    on.queue->add([send, receive, base = base_] { base->all_to_all(send, receive, {}); });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, deferred_stream on) {
    on.queue->add([mine, all, base = base_] { base->all_gather(mine, all, {}); });
  }

  void wait(deferred_stream on) {
    ++(on.end == work_queue::all ? on.queue->waits_for_all : on.queue->waits_for_part);
    if (on.queue->peers_are_gone) throw slamb::communicator_error("the peers are gone");
    on.queue->run_to(on.end);
  }

 private:
  std::shared_ptr<slamb::thread_communicator> base_;
};

}  // namespace test_support

template <>
struct slamb::detail::stream_copy<test_support::deferred_stream> {
  static void run(std::span<const std::byte> from, std::span<std::byte> to, test_support::deferred_stream on) {
    on.queue->add([from, to] { std::copy(from.begin(), from.end(), to.begin()); });
  }
};

/// A late read that completes when the queue reaches it.
template <class T>
class slamb::detail::late_read<test_support::deferred_stream, T> {
 public:
  explicit late_read(test_support::deferred_stream beside) : on_{beside.queue, 0} {}

  void start(const T* from) {
    on_.queue->add([from, to = value_] { *to = *from; });
    on_.end = on_.queue->size();
  }
  test_support::deferred_stream stream() const noexcept { return on_; }
  T finish() const {
    if (on_.queue->done() < on_.end) ++on_.queue->bare_waits;
    on_.queue->run_to(on_.end);
    return *value_;
  }

 private:
  test_support::deferred_stream on_;
  std::shared_ptr<T> value_ = std::make_shared<T>();
};
