// The messages of one rank's collectives: starts them, waits for them, and describes the fault if they do not arrive.
// mpi_communicator.hpp builds the collectives on it.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/detail/mpi_handle.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

class mpi_messages {
 public:
  /// Messages of one slot are waited for together. Slots 0 and 1 belong to one phase of a collective, 2 and 3 to the next.
  static constexpr int slots = 4;

  /// @param memory  bytes for received data that does not go to the caller's buffers
  mpi_messages(mpi_handle handle, std::size_t memory) : handle_(std::move(handle)), memory_(memory) {}
  mpi_messages(mpi_messages&&) noexcept = default;
  mpi_messages& operator=(mpi_messages&& other) noexcept {
    keep_if_failed();
    handle_ = std::move(other.handle_);
    slots_ = std::move(other.slots_);
    memory_ = std::move(other.memory_);
    return *this;
  }
  ~mpi_messages() { keep_if_failed(); }

  mpi_handle& handle() noexcept { return handle_; }
  const mpi_handle& handle() const noexcept { return handle_; }
  std::byte* memory() noexcept { return memory_.data(); }
  std::size_t memory_size() const noexcept { return memory_.size(); }

  /// Starts to receive from `peer`, in messages of at most `mpi_options::message_bytes`. Messages of one phase between two
  /// ranks arrive in the order in which they are sent.
  void receive(int slot, int peer, void* to, std::size_t bytes) {
    in_messages(slot, {.peer = peer, .kind = way::in}, bytes, [&](std::size_t offset, int size, MPI_Request* request) {
      require_success(
          MPI_Irecv(static_cast<std::byte*>(to) + offset, size, MPI_BYTE, peer, tag(slot), handle_.get(), request),
          "MPI_Irecv");
    });
  }
  /// Starts to send to `peer`, in messages of the same sizes.
  /// @param until_received  wait until the last message is received, not only sent: needed if nothing else keeps this rank from
  ///   running ahead of the peer
  void send(int slot, int peer, const void* from, std::size_t bytes, bool until_received = false) {
    in_messages(slot, {.peer = peer, .kind = way::out}, bytes, [&](std::size_t offset, int size, MPI_Request* request) {
      const bool is_last = offset + static_cast<std::size_t>(size) == bytes;
      const auto start = until_received && is_last ? MPI_Issend : MPI_Isend;
      require_success(
          start(static_cast<const std::byte*>(from) + offset, size, MPI_BYTE, peer, tag(slot), handle_.get(), request),
          "MPI_Isend");
    });
  }

  /// Waits until all messages of a slot have been received or sent. Fails as soon as a received message has the wrong size.
  void wait(int slot) {
    messages& all = slots_[static_cast<std::size_t>(slot)];
    std::size_t under_way = all.requests.size();
    const auto look = [&] {
      int some = 0;
      const int code = MPI_Testsome(static_cast<int>(all.requests.size()), all.requests.data(), &some, all.done.data(),
                                    all.statuses.data());
      if (code != MPI_SUCCESS) fail_for_message(all, some, code);
      const auto ended = static_cast<std::size_t>(some);
      for (std::size_t i = 0; i < ended; ++i) require_size(all.fact_of(i), all.statuses[i]);
      under_way -= ended;
      return under_way == 0;
    };
    if (under_way != 0 && !handle_.wait_until(look)) fail_for_timeout(all);
    all.clear();
  }

 private:
  enum class way : bool { in, out };
  struct message {
    int peer;
    way kind;
    int bytes = 0;
  };
  /// The pending requests of a slot, and memory for their MPI statuses.
  struct messages {
    std::vector<MPI_Request> requests;
    std::vector<message> metadata;
    std::vector<int> done;
    std::vector<MPI_Status> statuses;

    void reserve(std::size_t more) {
      const std::size_t size = requests.size() + more;
      if (size <= statuses.capacity()) return;  // statuses grows last, so all have this capacity
      const std::size_t room = std::max(size, 2 * statuses.capacity());
      requests.reserve(room);
      metadata.reserve(room);
      done.reserve(room);
      statuses.reserve(room);
    }
    /// Returns the place for its request, valid until the next `add`.
    MPI_Request* add(const message& one) {
      metadata.push_back(one);
      done.push_back(0);
      statuses.emplace_back();
      return &requests.emplace_back(MPI_REQUEST_NULL);
    }
    /// The message of the i-th completed request.
    const message& fact_of(std::size_t i) const { return metadata[static_cast<std::size_t>(done[i])]; }
    void clear() noexcept {
      requests.clear();
      metadata.clear();
      done.clear();
      statuses.clear();
    }
  };

  static constexpr int tags = 10'000;  // per phase

  int size() const noexcept { return handle_.size(); }

  void require_success(int code, const char* call) { handle_.require_success(code, call); }

  /// Calls start(offset, size, request) for the messages that make up `bytes`: first the remainder, then messages of one fixed
  /// size, an odd number of 64-byte lines. So if two ranks have payloads of different sizes, their first messages differ in
  /// size too, unless the payloads differ by a multiple of the fixed size. Sizes like powers of two do not.
  template <class Start>
  void in_messages(int slot, message one, std::size_t bytes, const Start& start) {
    constexpr std::size_t line = 64;
    const std::size_t lines = handle_.options().message_bytes / line;
    const std::size_t whole = (lines % 2 == 1 ? lines : lines - 1) * line;
    messages& all = slots_[static_cast<std::size_t>(slot)];
    reserve_or_fail(all, bytes / whole + 1);
    std::size_t size = bytes % whole == 0 ? whole : bytes % whole;
    for (std::size_t offset = 0; offset < bytes; offset += std::exchange(size, whole)) {
      one.bytes = static_cast<int>(size);
      start(offset, one.bytes, all.add(one));
    }
  }

  /// Out of memory: the communicator fails, because messages of this call may already be in flight.
  void reserve_or_fail(messages& all, std::size_t more) {
    try {
      all.reserve(more);
    } catch (const std::bad_alloc&) {
      handle_.break_off(std::current_exception());
      try {
        handle_.tell_peers("it is out of memory");
      } catch (const std::bad_alloc&) {  // peers detect it by their timeouts
      }
      throw;
    }
  }

  /// MPI tag, unique to this call, collective and phase, so that mismatched collectives on two ranks never match each other's
  /// messages. Calls far apart may share a tag, because there are only 10,000 per phase.
  int tag(int slot) const noexcept {
    const collective_call& call = handle_.call();
    std::uint64_t mixed = handle_.calls();
    for (const std::uint64_t fact :
         {static_cast<std::uint64_t>(call.kind), static_cast<std::uint64_t>(call.family),
          static_cast<std::uint64_t>(call.element_size), static_cast<std::uint64_t>(call.root)}) {
      mixed = (mixed ^ fact) * 0x9E3779B97F4A7C15U;
      mixed ^= mixed >> 29;
    }
    return static_cast<int>(mixed % tags) + tags * (slot / 2);
  }

  void require_size(const message& of, const MPI_Status& status) {
    int received = 0;
    if (of.kind == way::out) return;
    static_cast<void>(MPI_Get_count(&status, MPI_BYTE, &received));
    if (received != of.bytes) fail_for_size(of, std::to_string(received));
  }

  [[noreturn]] void fail_for_size(const message& of, const std::string& received) {
    handle_.fail_with(communicator_error("slamb: " + handle_.here() + ": rank " + std::to_string(of.peer) + " sent " +
                                         received + " bytes, but " + std::to_string(of.bytes) +
                                         " were expected: it called this collective with another size, or has another "
                                         "mpi_options::piece_bytes or message_bytes"));
  }

  [[noreturn]] void fail_for_message(const messages& all, int some, int code) {
    const std::size_t ended = code == MPI_ERR_IN_STATUS ? static_cast<std::size_t>(some) : 0;
    for (std::size_t i = 0; i < ended; ++i) {
      const int of_message = all.statuses[i].MPI_ERROR;
      if (of_message == MPI_SUCCESS || of_message == MPI_ERR_PENDING) continue;
      const message& of = all.fact_of(i);
      int error_class = of_message;
      static_cast<void>(MPI_Error_class(of_message, &error_class));
      if (error_class == MPI_ERR_TRUNCATE) fail_for_size(of, "more");
      handle_.fail_with(mpi_error(of_message, of.kind == way::out ? "MPI_Isend" : "MPI_Irecv",
                                  handle_.here() + ", with rank " + std::to_string(of.peer)));
    }
    handle_.fail_with(mpi_error(code, "MPI_Testsome", handle_.here()));
  }

  [[noreturn]] void fail_for_timeout(messages& all) {
    std::string missing;
    for (int peer = 0; peer < size(); ++peer) {
      if (!has_under_way(all, peer)) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(peer);
      if (has_sent_something_else(peer)) missing += " (which has called another collective)";
    }
    handle_.fail_with(communicator_error("slamb: " + handle_.here() + ": after " +
                                         std::to_string(handle_.options().timeout.count()) +
                                         " ms, messages with these ranks were not complete: " + missing));
  }

  static bool has_under_way(messages& all, int peer) {
    bool found = false;
    for (std::size_t i = 0; i < all.requests.size(); ++i) {
      int done = 1;
      if (all.metadata[i].peer != peer || all.requests[i] == MPI_REQUEST_NULL) continue;
      found = MPI_Test(&all.requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0 || found;
    }
    return found;
  }

  bool has_sent_something_else(int peer) {
    int found = 0;
    MPI_Status status;
    if (MPI_Iprobe(peer, MPI_ANY_TAG, handle_.get(), &found, &status) != MPI_SUCCESS || found == 0) return false;
    return status.MPI_TAG != tag(0) && status.MPI_TAG != tag(2);
  }

  /// Keeps receive memory alive after a failure, because MPI may still write to it: only a message that has not begun to arrive
  /// can be cancelled.
  void keep_if_failed() noexcept {
    int finalized = 0;
    if (!handle_.has_failed() || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    for (messages& all : slots_) {
      for (std::size_t i = 0; i < all.requests.size(); ++i) {
        if (all.requests[i] == MPI_REQUEST_NULL) continue;
        if (all.metadata[i].kind == way::in) static_cast<void>(MPI_Cancel(&all.requests[i]));
        static_cast<void>(MPI_Request_free(&all.requests[i]));
      }
    }
    static_cast<void>(new (std::nothrow) std::vector<std::byte>(std::move(memory_)));
  }

  mpi_handle handle_;
  std::array<messages, slots> slots_;
  std::vector<std::byte> memory_;
};

}  // namespace slamb::detail
