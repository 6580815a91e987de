// Any Communicator for host memory, on buffers in the memory of a GPU: payloads go through pinned memory of the host. Plain C++:
// needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/detail/runtime/cuda_staging.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace slamb {

namespace detail {

/// Settings of a staged_communicator. `bytes` must be the same on all ranks.
struct staging_options {
  std::size_t bytes = std::size_t{1} << 25;   ///< of pinned host memory, half of it per part; in [128, 2^40]
  std::chrono::milliseconds timeout{300000};  ///< of a wait for work on a stream; > 0
};

/// A Communicator that can make one collective in several calls: until end_parts(), its collectives are parts of `call`, which its
/// errors name and its peers must make too.
template <class C>
concept makes_parts = requires(C& c, const collective_call& call) {
  c.begin_parts(call);
  c.end_parts();
};

}  // namespace detail

/// One rank of a `Host`, whose buffers are in the memory of a GPU, for cuda_backend. It is the way to train on GPUs over whatever
/// sends host memory: MPI without CUDA, sockets, a framework's own network, threads. Move this handle into the rank's optimizer.
///
/// It belongs to the device that is current at construction. The streams must belong to that device, and the device must be
/// current in each call.
///
/// @tparam Host  a Communicator with all_reduce_sum of floats on `host_stream`. Its other collectives, of bytes, decide which ones
///   there are. If it has them, `check` is called while this rank waits for its stream, and `abort` if the device fails.
///
/// Every collective
/// @throws std::logic_error while the stream is captured into a graph, before any work
/// @throws std::invalid_argument for a wrong root or sizes that do not fit, before any work
/// @throws communicator_error if the work on the stream is not done within `options.timeout`, or a call has failed before
/// @throws cuda_error with the error of the runtime, of this call or of earlier work on the stream
/// @throws the exceptions of `Host`
///
/// **Failures are final.** The first failure is reported to the peers, if `Host` has `abort`. Each later call throws its text
/// again. After a failure, copies from and to the buffers of that call may still be running. The pinned memory is kept until the
/// program ends.
///
/// *Stream*: a call waits until work enqueued before is done. It returns when the result is enqueued: later work on the stream may
/// use it. Not capturable into a graph.
/// *Cost*: the payload goes to the host and back in parts of at most `options.bytes`/2. One part is copied while another
/// is sent. A rank's own elements of all_to_all and all_gather stay on the device.
/// *Determinism*: that of `Host`. Sums have the bits of `Host` if its sum of an element does not depend on the place of the element
/// in the payload, as with thread_communicator and mpi_communicator.
template <communicator Host>
requires capability::has_all_reduce_sum<Host, float>
class staged_communicator {
 public:
  using options_type = detail::staging_options;

  /// @param host  all its ranks must construct a staged_communicator at this point, with equal `options.bytes`
  /// @throws std::invalid_argument for an option out of range; communicator_error if ranks differ in `options.bytes`
  /// @throws cuda_error; the exceptions of `Host`
  explicit staged_communicator(Host host, const options_type& options = {})
      : options_(validated(options)),
        host_(std::move(host)),
        staging_(or_abort([&] { return detail::cuda::staging(is_alone() ? 0 : 2 * half_of(options, size())); })) {
    or_abort([&] { require_equal_bytes(); });
  }

  int rank() const { return static_cast<int>(host_.rank()); }
  int size() const { return static_cast<int>(host_.size()); }
  Host& host() noexcept { return host_; }
  const Host& host() const noexcept { return host_; }
  /// True if the collective exists. For a `Host` that knows its collectives only at run time.
  bool has(collective kind) const { return detail::says_it_has(host_, kind); }

  /// `values` [n], on the device, become their sum over ranks.
  template <class T>
  requires capability::has_all_reduce_sum<Host, T>
  void all_reduce_sum(std::span<T> values, cudaStream_t stream) {
    sum_in_parts(values, stream, [&](std::span<T> part) { host_.all_reduce_sum(part, host_stream{}); });
  }

  /// `values` [n], on the device, become those of rank `root`.
  template <class T>
  requires(std::is_trivially_copyable_v<T>&& capability::has_broadcast<Host, std::byte>) void broadcast(
      std::span<T> values, int root, cudaStream_t stream) {
    require_fit(detail::broadcast_fault(root, size()));
    const auto bytes = std::as_writable_bytes(values);
    const bool is_root = rank() == root;
    const auto call = detail::call_of<T>(collective::broadcast, values.size(), root);
    run(call, stream, [&] {
      in_parts(
          call, bytes.size(), 1, stream,
          [&](const part& p) {
            if (is_root) copy(p.memory, bytes.data() + p.offset, p.size, stream);
          },
          [&](const part& p) { host_.broadcast(std::span(p.memory, p.size), root, host_stream{}); },
          [&](const part& p) {
            if (!is_root) copy(bytes.data() + p.offset, p.memory, p.size, stream);
          });
    });
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order; both on the device. `mine` may be this rank's chunk of
  /// `all`.
  template <class T>
  requires(std::is_trivially_copyable_v<T>&& capability::has_all_gather<Host, std::byte>) void all_gather(
      std::span<const T> mine, std::span<T> all, cudaStream_t stream) {
    require_fit(detail::all_gather_fault(mine.size(), all.size(), size()));
    const std::size_t chunk = mine.size_bytes();
    const auto* const from = std::as_bytes(mine).data();
    auto* const to = std::as_writable_bytes(all).data();
    const auto call = detail::call_of<T>(collective::all_gather, mine.size());
    run(call, stream, [&] {
      copy(to + times(rank(), chunk), from, chunk, stream);
      in_parts(
          call, chunk, size() + 1, stream, [&](const part& p) { copy(p.memory, from + p.offset, p.size, stream); },
          [&](const part& p) {
            host_.all_gather(std::span<const std::byte>(p.memory, p.size),
                             std::span(p.memory + p.size, times(size(), p.size)), host_stream{});
          },
          [&](const part& p) {
            for_each_peer([&](int peer) {
              copy(to + times(peer, chunk) + p.offset, p.memory + times(1 + peer, p.size), p.size, stream);
            });
          });
    });
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; both on the device. The two do not
  /// overlap.
  template <class T>
  requires(std::is_trivially_copyable_v<T>&& capability::has_all_to_all<Host, std::byte>) void all_to_all(
      std::span<const T> send, std::span<T> receive, cudaStream_t stream) {
    require_fit(detail::all_to_all_fault(send.size(), receive.size(), size()));
    const std::size_t chunk = send.size_bytes() / static_cast<std::size_t>(size());
    const auto* const from = std::as_bytes(send).data();
    auto* const to = std::as_writable_bytes(receive).data();
    const auto call = detail::call_of<T>(collective::all_to_all, send.size());
    run(call, stream, [&] {
      copy(to + times(rank(), chunk), from + times(rank(), chunk), chunk, stream);
      in_parts(
          call, chunk, 2 * size(), stream,
          [&](const part& p) {
            for_each_peer([&](int peer) {
              copy(p.memory + times(peer, p.size), from + times(peer, chunk) + p.offset, p.size, stream);
            });
          },
          [&](const part& p) {
            const std::size_t bytes = times(size(), p.size);
            host_.all_to_all(std::span<const std::byte>(p.memory, bytes), std::span(p.memory + bytes, bytes),
                             host_stream{});
          },
          [&](const part& p) {
            for_each_peer([&](int peer) {
              copy(to + times(peer, chunk) + p.offset, p.memory + times(size() + peer, p.size), p.size, stream);
            });
          });
    });
  }

  /// The nodes of a `Host` whose ranks are nodes. @{
  int local_rank() const requires capability::has_all_reduce_in_node<Host> {
    return static_cast<int>(host_.local_rank());
  }
  int local_size() const requires capability::has_all_reduce_in_node<Host> {
    return static_cast<int>(host_.local_size());
  }
  void all_reduce_in_node(std::span<float> values,
                          cudaStream_t stream) requires capability::has_all_reduce_in_node<Host> {
    sum_in_parts(values, stream, [&](std::span<float> part) { host_.all_reduce_in_node(part, host_stream{}); });
  }
  /// @}

  /// Checks whether a peer has reported a failure, if `Host` can tell. Does not wait.
  /// @throws the exceptions of `Host`; communicator_error if a call has failed before
  void check() {
    throw_if_failed();
    guarded([&] { check_host(); });
  }

  /// Waits until all work on `stream` is done, and looks for failed peers meanwhile. Not allowed while the stream is captured.
  /// @throws std::logic_error, cuda_error, communicator_error as a collective; the exceptions of `Host`
  void wait(cudaStream_t stream) {
    require_usable(stream, "wait");
    guarded([&] {
      staging_.mark(0, stream);
      wait_for(0, std::nullopt);
    });
  }

  /// Makes the communicator fail, for a rank that cannot continue. Every later call throws `reason`; its peers fail too, if `Host`
  /// has `abort`. Does nothing if it has failed before.
  void abort(const std::string& reason) {
    if (!failure_.empty()) return;
    failure_ = "slamb: " + here() + " was aborted: " + reason;
    abort_host(reason);
  }

  /// Bytes on the wire of a float of a sum.
  std::uint64_t value_bytes() const noexcept {
    if constexpr (requires { host_.value_bytes(); })
      return host_.value_bytes();
    else
      return sizeof(float);
  }

  /// Makes a collective without staging, for a `Host` that can also send memory of the device: waits for the stream, then calls
  /// body(host()). All else is as for the collectives above.
  /// @param call  the collective, for messages
  template <class Body>
  void run_on_host(const detail::collective_call& call, cudaStream_t stream, const Body& body) {
    run(call, stream, [&] {
      if (call.count == 0) return;
      staging_.mark(0, stream);
      wait_for(0, call);
      body(host_);
    });
  }

 private:
  static constexpr std::size_t line = 64;  // bytes: parts are whole lines

  /// A part of a payload.
  struct part {
    std::size_t offset;  // bytes
    std::size_t size;    // bytes
    std::byte* memory;   // the pinned memory through which the part goes
  };

  static options_type validated(options_type o) {
    detail::require_in(o.bytes >= 128 && o.bytes <= (std::size_t{1} << 40), "staged_communicator: bytes",
                       static_cast<double>(o.bytes), "in [128, 2^40]");
    detail::require_in(o.timeout.count() > 0, "staged_communicator: timeout", static_cast<double>(o.timeout.count()),
                       "> 0 ms");
    return o;
  }

  static std::size_t times(int n, std::size_t size) noexcept { return static_cast<std::size_t>(n) * size; }

  /// The size of half of the staging memory, in bytes: whole lines, with at least one line for each rank in both directions, as
  /// all_to_all needs.
  static std::size_t half_of(const options_type& options, int ranks) {
    return std::max(options.bytes / 2, times(2 * ranks, line)) / line * line;
  }

  static void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    detail::cuda::copy_async(to, from, bytes, stream);
  }
  static void require_fit(const std::string& fault) {
    if (!fault.empty()) throw std::invalid_argument("slamb: " + fault);
  }
  template <class F>
  void for_each_peer(const F& f) const {
    for (int i = 1; i < size(); ++i) f((rank() + i) % size());
  }

  /// Returns body(). If it throws, the peers are told, so that they do not wait for this rank.
  template <class Body>
  auto or_abort(const Body& body) {
    try {
      return body();
    } catch (const std::exception& failure) {
      abort_host(failure.what());
      throw;
    }
  }

  /// True if there is nobody to send to, in this node either.
  bool is_alone() const {
    bool alone = size() == 1;
    if constexpr (capability::has_all_reduce_in_node<Host>) alone = alone && local_size() == 1;
    return alone;
  }

  /// "staged_communicator of rank 1 of 4".
  std::string here() const {
    return "staged_communicator of rank " + std::to_string(rank()) + " of " + std::to_string(size());
  }

  void throw_if_failed() const {
    if (!failure_.empty()) throw communicator_error(failure_);
  }

  /// @throws the first failure of this communicator, if it has failed; std::logic_error while the stream is captured
  void require_usable(cudaStream_t stream, const std::string& what) {
    throw_if_failed();
    bool is_captured = false;
    guarded([&] { is_captured = detail::cuda::is_capturing(stream); });
    if (is_captured)
      throw std::logic_error("slamb: " + here() + ": " + what +
                             " cannot be captured into a graph, because the host sends its messages; call it outside "
                             "the capture, or use an nccl_communicator");
  }

  /// Calls body(). If it throws, this communicator fails, reports the failure to its peers, and rethrows. The staging memory is then
  /// never freed, because a device or the network may still write to it.
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const std::exception& failure) {
      fail(failure.what());
      throw;
    } catch (...) {
      fail("slamb: " + here() + " failed by an exception that is no std::exception");
      throw;
    }
  }
  void fail(const std::string& reason) {
    staging_.keep();
    if (!failure_.empty()) return;
    failure_ = reason;
    abort_host(reason);
  }
  void abort_host([[maybe_unused]] const std::string& reason) {
    if constexpr (detail::has_abort<Host>) host_.abort(reason);
  }
  void check_host() {
    if constexpr (detail::has_check<Host>) host_.check();
  }

  /// Makes one collective.
  template <class Body>
  void run(const detail::collective_call& call, cudaStream_t stream, const Body& body) {
    require_usable(stream, to_text(call));
    guarded([&] {
      if constexpr (detail::makes_parts<Host>) host_.begin_parts(call);
      body();
      if constexpr (detail::makes_parts<Host>) host_.end_parts();
    });
  }

  template <class T, class Sum>
  void sum_in_parts(std::span<T> values, cudaStream_t stream, const Sum& sum) {
    static_assert(line % sizeof(T) == 0);
    const auto bytes = std::as_writable_bytes(values);
    const auto call = detail::call_of<T>(collective::all_reduce, values.size());
    run(call, stream, [&] {
      in_parts(
          call, bytes.size(), 1, stream,
          [&](const part& p) { copy(p.memory, bytes.data() + p.offset, p.size, stream); },
          [&](const part& p) { sum(std::span<T>(reinterpret_cast<T*>(p.memory), p.size / sizeof(T))); },
          [&](const part& p) { copy(bytes.data() + p.offset, p.memory, p.size, stream); });
    });
  }

  /// Transfers `bytes` in parts. Half of the staging memory holds `ways` parts of the same size. fetch(part) enqueues copies
  /// to the staging memory, exchange(part) sends and receives, and put(part) enqueues copies from the staging memory. A part is
  /// fetched while the part before is exchanged. The stream's order ensures that a half is put before it is fetched again.
  template <class Fetch, class Exchange, class Put>
  void in_parts(const detail::collective_call& call, std::size_t bytes, int ways, cudaStream_t stream,
                const Fetch& fetch, const Exchange& exchange, const Put& put) {
    if (bytes == 0 || is_alone()) return;
    const std::size_t whole = staging_.half_size() / static_cast<std::size_t>(ways) / line * line;
    const auto at = [&](std::size_t offset, int slot) {
      return part{offset, std::min(whole, bytes - offset), staging_.half(slot)};
    };
    const auto begin = [&](std::size_t offset, int slot) {
      fetch(at(offset, slot));
      // Also if nothing is fetched, because messages must not overwrite a half that is still being put.
      staging_.mark(slot, stream);
    };
    staging_.acquire(stream);
    begin(0, 0);
    int slot = 0;
    for (std::size_t offset = 0; offset < bytes; offset += whole, slot ^= 1) {
      if (whole < bytes - offset) begin(offset + whole, slot ^ 1);
      wait_for(slot, call);
      exchange(at(offset, slot));
      put(at(offset, slot));
    }
    staging_.release(stream);
  }

  /// Waits until the work that was marked for a slot is done. Fails if a peer has failed, or after the timeout.
  /// @param call  that waits; none: `wait`
  void wait_for(int slot, const std::optional<detail::collective_call>& call) {
    constexpr std::uint64_t polls_between_looks = 16;
    constexpr std::chrono::microseconds time_before_sleep{200}, nap{50};
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t polls = 1; !staging_.is_ready(slot); ++polls) {
      if (polls % polls_between_looks == 0) check_host();
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited >= options_.timeout) {
        // Asks once more, because this process may itself have been stopped.
        if (staging_.is_ready(slot)) return;
        throw communicator_error("slamb: " + here() + ": " + (call ? to_text(*call) : "wait") + ": after " +
                                 std::to_string(options_.timeout.count()) + " ms, the stream's work was not done");
      }
      if (waited < time_before_sleep)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(nap);
    }
  }

  /// Parts have the same sizes on all ranks only if their staging memory has.
  void require_equal_bytes() {
    if (size() > 1)
      compare_bytes("rank ",
                    {rank(), size(), [this](std::span<float> values) { host_.all_reduce_sum(values, host_stream{}); }});
    if constexpr (capability::has_all_reduce_in_node<Host>)
      if (local_size() > 1)
        compare_bytes("local rank ", {local_rank(), local_size(), [this](std::span<float> values) {
                                        host_.all_reduce_in_node(values, host_stream{});
                                      }});
  }
  void compare_bytes(const std::string& kind, const detail::summing_ranks& ranks) const {
    const std::uint64_t own = options_.bytes;
    const detail::rank_table all(ranks, {&own, 1});
    for (std::size_t peer = 1; peer < static_cast<std::size_t>(ranks.size); ++peer) {
      if (all.sent_word(peer, 0) == all.sent_word(0, 0)) continue;
      detail::synchronize_before_throwing(ranks);
      throw communicator_error("slamb: staged_communicator: bytes is " + std::to_string(all.sent_word(0, 0)) + " on " +
                               kind + "0, but " + std::to_string(all.sent_word(peer, 0)) + " on " + kind +
                               std::to_string(peer) + "; it must be the same on all ranks");
    }
  }

  options_type options_;
  Host host_;
  detail::cuda::staging staging_;
  std::string failure_;  // the text of the first failure
};

}  // namespace slamb
