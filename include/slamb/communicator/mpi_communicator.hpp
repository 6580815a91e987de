// The ranks of an MPI communicator: collectives on host memory. If a peer is lost, they end in an exception, never in a hang.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/detail/mpi_handle.hpp"
#include "slamb/communicator/detail/mpi_messages.hpp"
#include "slamb/communicator/detail/rank_sums.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// One rank of an MPI communicator, which it copies or borrows: a handle to be moved into the rank's optimizer.
///
/// All ranks make the same collectives in the same order with the same sizes, each from one thread at a time. MPI must allow
/// calls from this thread: with MPI_THREAD_SERIALIZED from any thread, otherwise only from the thread that started MPI. A call
/// returns when this rank's buffers may be used again. Buffers are host memory of any alignment and size; for GPU memory use
/// cuda_mpi_communicator.
///
/// Every collective
/// @throws std::invalid_argument for a wrong root or sizes that do not fit, before any message is sent. The peers wait for this
///   rank until it calls `abort`, the exception destroys the communicator, or they time out.
/// @throws mpi_error if MPI reports an error
/// @throws communicator_error if no piece of the data arrives within `mpi_options::timeout`; if a peer reports a failure, or
///   calls another collective, element type or size; if the handle was moved from. The timeout must be longer than the time
///   between two collectives of a peer. A rank that only sends to the failed peer detects the failure at its next collective.
///
/// **Failures are final.** The first failure is reported to all peers that can still be reached, which then throw too. Each
/// later call throws it again. A communicator that is destroyed by an exception reports a failure too. After a failure MPI may
/// still read and write the buffers of that call, whenever MPI is called. So make no MPI call but MPI_Abort, as mpi_environment
/// does: MPI_Finalize would wait for all ranks. MPI decides if a program survives the death of a peer: Open MPI's mpirun ends
/// all ranks at once, unless it is given --enable-recovery.
///
/// *Cost*: messages between all pairs of ranks; bytes on the wire: `bytes_sent_by`. all_reduce_sum exchanges chunks, sums them,
/// and exchanges the sums. Payloads are sent in pieces, two at a time. Memory: 2 · `piece_bytes`.
/// *Determinism*: sums are made in rank order, element by element. Sums of floats are made in double precision and rounded
/// once. They have the same bits on all ranks, in every run, and as in thread_communicator.
class mpi_communicator {
 public:
  /// A copy of `comm`, made by all its ranks together.
  ///
  /// @throws std::invalid_argument if `comm` is null or joins two groups, or an option is out of range; std::logic_error if MPI
  ///   is not running
  /// @throws mpi_error; communicator_error if the peers do not come within `options.timeout`
  explicit mpi_communicator(MPI_Comm comm = MPI_COMM_WORLD, mpi_options options = {})
      : mpi_communicator(detail::mpi_handle(comm, true, options)) {}

  /// Uses `comm` itself, does not free it, and must not outlive it. Nothing else may send or receive with `comm` meanwhile, not
  /// even another borrower, nor after a failure. `comm` must return its errors (MPI_ERRORS_RETURN).
  ///
  /// @throws as the constructor; std::invalid_argument too if errors of `comm` end the program
  static mpi_communicator borrow(MPI_Comm comm, mpi_options options = {}) {
    return mpi_communicator(detail::mpi_handle(comm, false, options));
  }

  int rank() const noexcept { return messages_.handle().rank(); }
  int size() const noexcept { return messages_.handle().size(); }
  /// MPI's handle; null in a communicator that was moved from.
  MPI_Comm native_handle() const noexcept { return messages_.handle().get(); }

  /// `values` [n] become their sum over ranks, ((x₀ + x₁) + x₂) + …; integers wrap around.
  template <detail::summable T>
  void all_reduce_sum(std::span<T> values, host_stream /*stream*/) {
    if (!begin<T>({.kind = collective::all_reduce, .count = values.size()})) return;
    in_pieces<T>(
        values,
        [&](const piece& p, int slot) {
          for_each_peer([&](int peer) {
            messages_.receive(slot, peer, scratch<T>(slot, p, peer), p.size(rank()) * sizeof(T));
            messages_.send(slot, peer, values.data() + p.begin(peer), p.size(peer) * sizeof(T));
          });
        },
        [&](const piece& p, int slot) {
          T* const mine = values.data() + p.begin(rank());
          detail::sum_over_ranks<T>(
              size(), 0, p.size(rank()),
              [&](int peer) -> const T* { return peer == rank() ? mine : scratch<T>(slot, p, peer); },
              [&](std::size_t first, const T* sums, std::size_t count) {
                detail::copy_bytes(mine + first, sums, count * sizeof(T));
              });
        },
        no_root);
  }

  /// `values` [n] become those of rank `root`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void broadcast(std::span<T> values, int root, host_stream /*stream*/) {
    require_fit(detail::broadcast_fault(root, size()));
    if (!begin<T>({.kind = collective::broadcast, .count = values.size(), .root = root})) return;
    in_pieces<T>(
        values,
        [&](const piece& p, int slot) {
          if (rank() != root)
            return messages_.receive(slot, root, values.data() + p.begin(rank()), bytes_of<T>(p, rank()));
          for_each_peer([&](int peer) {
            messages_.send(slot, peer, values.data() + p.begin(peer), bytes_of<T>(p, peer), p.first > 0);
          });
        },
        [](const piece& /*p*/, int /*slot*/) {}, root);
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order. `mine` may be its own place in `all`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_gather(std::span<const T> mine, std::span<T> all, host_stream /*stream*/) {
    all_gather_by(detail::copy_bytes, mine, all);
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; the two do not overlap.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_to_all(std::span<const T> send, std::span<T> receive, host_stream /*stream*/) {
    all_to_all_by(detail::copy_bytes, send, receive);
  }

  /// Checks if a peer has reported a failure. Does not wait.
  ///
  /// @throws communicator_error if one has; the first failure if this communicator has failed before
  void check() {
    messages_.handle().throw_if_unusable();
    for (int look = 0; look < 2; ++look) messages_.handle().look_for_failed_peers();  // the first may only fetch it
  }

  /// The communicator fails with `reason`, which every later call throws, and reports it to its peers. For a rank that cannot
  /// go on. Does nothing if it has failed before or was moved from.
  void abort(const std::string& reason) {
    if (messages_.handle().get() == MPI_COMM_NULL || messages_.handle().has_failed()) return;
    messages_.handle().tell_peers(reason);
    messages_.handle().break_off(
        communicator_error("slamb: mpi_communicator of " + messages_.handle().rank_text() + " was aborted: " + reason));
  }

  /// For the library: until end_parts(), collectives are parts of `call`, which errors name and peers must make too. @{
  void begin_parts(const detail::collective_call& call) { messages_.handle().begin_parts(call); }
  void end_parts() noexcept { messages_.handle().end_parts(); }
  /// @}

  /// For the library: all_gather and all_to_all in memory that only MPI can read. copy(to, from, bytes) copies this rank's own
  /// elements. @{
  template <class T, class Copy>
  void all_gather_by(const Copy& copy, std::span<const T> mine, std::span<T> all) {
    require_fit(detail::all_gather_fault(mine.size(), all.size(), size()));
    exchange({.kind = collective::all_gather, .count = mine.size()}, copy, mine, all);
  }
  template <class T, class Copy>
  void all_to_all_by(const Copy& copy, std::span<const T> send, std::span<T> receive) {
    require_fit(detail::all_to_all_fault(send.size(), receive.size(), size()));
    exchange({.kind = collective::all_to_all, .count = send.size()}, copy, send, receive);
  }
  /// @}

 private:
  static constexpr int no_root = -1;
  static constexpr std::size_t line = 64;  // bytes: chunks start at multiples of it

  /// A part of a payload, split into a chunk for each rank; in elements.
  struct piece {
    std::size_t first;
    std::size_t last;
    std::size_t chunk;

    std::size_t begin(int rank) const noexcept {
      return std::min(last, first + static_cast<std::size_t>(rank) * chunk);
    }
    std::size_t size(int rank) const noexcept { return begin(rank + 1) - begin(rank); }
  };

  explicit mpi_communicator(detail::mpi_handle handle) : messages_(make_messages(std::move(handle))) {}

  static detail::mpi_messages make_messages(detail::mpi_handle handle) {
    const int ranks = handle.size();
    const std::size_t piece_bytes = std::max(handle.options().piece_bytes, offset_of(ranks, line));
    return {std::move(handle), ranks == 1 ? 0 : 2 * piece_bytes};
  }

  static void require_fit(const std::string& fault) {
    if (!fault.empty()) throw std::invalid_argument("slamb: " + fault);
  }

  template <class T, class Copy>
  void exchange(detail::collective_call call, const Copy& copy, std::span<const T> send, std::span<T> receive) {
    const bool has_peers = begin<T>(call);
    const std::size_t chunk = receive.size_bytes() / static_cast<std::size_t>(size());
    const std::size_t stride = call.kind == collective::all_gather ? 0 : chunk;  // 0: all get the same data
    const std::byte* const from = std::as_bytes(send).data();
    std::byte* const to = std::as_writable_bytes(receive).data();
    copy(to + offset_of(rank(), chunk), from + offset_of(rank(), stride), chunk);
    if (!has_peers) return;
    in_messages(chunk, [&](int slot, std::size_t offset, std::size_t bytes) {
      for_each_peer([&](int peer) {
        messages_.receive(slot, peer, to + offset_of(peer, chunk) + offset, bytes);
        messages_.send(slot, peer, from + offset_of(peer, stride) + offset, bytes);
      });
    });
  }

  /// Begins a call. True if there is something to send.
  template <class T>
  bool begin(detail::collective_call call) {
    call.family = detail::element_family<T>();
    call.element_size = sizeof(T);
    messages_.handle().begin(call);
    if (call.count > 0 && size() > 1) return true;
    messages_.handle().end();
    return false;
  }

  template <class F>
  void for_each_peer(const F& f) const {
    for (int i = 1; i < size(); ++i) f((rank() + i) % size());  // every rank begins at another peer
  }

  static std::size_t offset_of(int rank, std::size_t size) noexcept { return static_cast<std::size_t>(rank) * size; }

  template <class T>
  static std::size_t bytes_of(const piece& p, int rank) noexcept {
    return p.size(rank) * sizeof(T);
  }

  /// The place where the terms of rank `peer` for this rank's chunk arrive.
  template <class T>
  T* scratch(int slot, const piece& p, int peer) noexcept {
    const std::size_t offset = offset_of(slot, messages_.memory_size() / 2) + offset_of(peer, p.chunk * sizeof(T));
    return reinterpret_cast<T*>(messages_.memory() + offset);
  }

  /// For each piece of `values`: scatter() sends chunks to their ranks, settle() processes the received chunk, then all ranks
  /// but `root` gather the chunks of all ranks. A piece is scattered while the previous piece is gathered.
  template <class T, class Scatter, class Settle>
  void in_pieces(std::span<T> values, const Scatter& scatter, const Settle& settle, int root) {
    constexpr std::size_t unit = std::max<std::size_t>(1, line / sizeof(T));
    const auto ranks = static_cast<std::size_t>(size());
    const std::size_t whole =
        std::max<std::size_t>(1, messages_.handle().options().piece_bytes / (ranks * unit * sizeof(T))) * ranks * unit;
    const auto finish = [&](const piece& p, int slot) {
      messages_.wait(slot);
      settle(p, slot);
      messages_.wait(slot + 2);
      gather<T>(values, p, slot + 2, root);
    };

    piece before{};
    int slot = 0;
    for (std::size_t first = 0; first < values.size(); first += whole, slot ^= 1) {
      const std::size_t count = std::min(whole, values.size() - first);
      const piece now{first, first + count, (count + ranks * unit - 1) / (ranks * unit) * unit};
      scatter(now, slot);
      if (first > 0) finish(before, slot ^ 1);
      before = now;
    }
    finish(before, slot ^ 1);
    messages_.wait(2);
    messages_.wait(3);
    messages_.handle().end();
  }

  template <class T>
  void gather(std::span<T> values, const piece& p, int slot, int root) {
    for_each_peer([&](int peer) {
      if (rank() != root) messages_.receive(slot, peer, values.data() + p.begin(peer), bytes_of<T>(p, peer));
      if (peer != root) messages_.send(slot, peer, values.data() + p.begin(rank()), bytes_of<T>(p, rank()));
    });
  }

  /// Calls start(slot, offset, bytes) for consecutive parts of a message of `size` bytes.
  template <class Start>
  void in_messages(std::size_t size, const Start& start) {
    const std::size_t whole =
        std::max<std::size_t>(line, messages_.handle().options().piece_bytes / static_cast<std::size_t>(this->size()));
    int slot = 0;
    for (std::size_t offset = 0; offset < size; offset += whole, slot ^= 1) {
      messages_.wait(slot);
      start(slot, offset, std::min(whole, size - offset));
    }
    messages_.wait(0);
    messages_.wait(1);
    messages_.handle().end();
  }

  detail::mpi_messages messages_;  // with the memory for two pieces
};

static_assert(capability::has_all_reduce_sum<mpi_communicator, float>);
static_assert(capability::has_all_gather<mpi_communicator, std::byte>);
static_assert(capability::has_all_to_all<mpi_communicator, std::byte>);
static_assert(capability::has_broadcast<mpi_communicator, std::byte>);

}  // namespace slamb
