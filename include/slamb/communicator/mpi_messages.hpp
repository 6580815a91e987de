// The messages of one rank's collectives: which belong together, who waits for them, and what is wrong when they do not come.
// mpi_communicator.hpp makes the collectives of them.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "slamb/communicator/mpi_error.hpp"
#include "slamb/communicator/mpi_handle.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

class mpi_messages {
 public:
  /// Messages of one slot are waited for together. Slots 0 and 1 are of one phase of a collective, 2 and 3 of the next.
  static constexpr int slots = 4;

  /// With memory of that size, for what is to be received and is no part of the caller's buffers.
  mpi_messages(mpi_handle handle, std::size_t memory)
      : handle_(std::move(handle)),
        statuses_(2 * static_cast<std::size_t>(handle_.size())),
        requests_(slots * statuses_.size(), MPI_REQUEST_NULL),
        expected_(slots * statuses_.size(), 0),
        memory_(memory) {}
  mpi_messages(mpi_messages&&) noexcept = default;
  mpi_messages& operator=(mpi_messages&& other) noexcept {
    keep_if_failed();
    handle_ = std::move(other.handle_);
    statuses_ = std::move(other.statuses_);
    requests_ = std::move(other.requests_);
    expected_ = std::move(other.expected_);
    memory_ = std::move(other.memory_);
    return *this;
  }
  ~mpi_messages() { keep_if_failed(); }

  mpi_handle& handle() noexcept { return handle_; }
  const mpi_handle& handle() const noexcept { return handle_; }
  std::byte* memory() noexcept { return memory_.data(); }
  std::size_t memory_size() const noexcept { return memory_.size(); }

  /// Starts to receive from `peer`, or to send to it. `bytes` ≤ 2^30; 0 are no message. At most one each way, peer, and
  /// slot at a time; messages of a phase between two ranks arrive in the order in which they are sent.
  void receive(int slot, int peer, void* to, std::size_t bytes) {
    if (bytes == 0) return;
    const std::size_t i = index_of(slot, peer);
    expected_[i] = bytes;
    require_success(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, tag(slot), handle_.get(), &requests_[i]),
                    "MPI_Irecv");
  }
  void send(int slot, int peer, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    MPI_Request* const request = &requests_[index_of(slot, size() + peer)];
    require_success(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, tag(slot), handle_.get(), request),
                    "MPI_Isend");
  }

  /// Waits until all messages of a slot have arrived, or fails.
  void wait(int slot) {
    int done = 0;
    const auto look = [&] {
      const int code = MPI_Testall(2 * size(), &requests_[index_of(slot, 0)], &done, statuses_.data());
      if (code != MPI_SUCCESS) fail_for_message(slot, code);
      return done != 0;
    };
    if (!handle_.wait_until(look)) fail_for_timeout(slot);
    require_sizes(slot);
  }

 private:
  static constexpr int tags = 10'000;  // of each phase

  int size() const noexcept { return handle_.size(); }

  void require_success(int code, const char* call) { handle_.require_success(code, call); }

  /// Of a request: receives of a slot by peer, then its sends by peer.
  std::size_t index_of(int slot, int message) const noexcept {
    return static_cast<std::size_t>(slot) * statuses_.size() + static_cast<std::size_t>(message);
  }

  /// Of the phase of this call and of no other near it: what ranks send that call different things meets nothing.
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

  void require_sizes(int slot) {
    for (int peer = 0; peer < size(); ++peer) {
      std::size_t& expected = expected_[index_of(slot, peer)];
      if (expected == 0) continue;
      int received = 0;
      static_cast<void>(MPI_Get_count(&statuses_[static_cast<std::size_t>(peer)], MPI_BYTE, &received));
      if (static_cast<std::size_t>(received) != expected) fail_for_size(peer, std::to_string(received), expected);
      expected = 0;
    }
  }

  [[noreturn]] void fail_for_size(int peer, const std::string& received, std::size_t expected) {
    handle_.fail_with(communicator_error("slamb: " + handle_.here() + ": rank " + std::to_string(peer) + " sent " +
                                         received + " bytes where " + std::to_string(expected) +
                                         " were expected: it called this collective with another size, or has another "
                                         "mpi_options::piece_bytes"));
  }

  [[noreturn]] void fail_for_message(int slot, int code) {
    for (int i = 0; i < 2 * size() && code == MPI_ERR_IN_STATUS; ++i) {
      const int of_message = statuses_[static_cast<std::size_t>(i)].MPI_ERROR;
      if (of_message == MPI_SUCCESS || of_message == MPI_ERR_PENDING) continue;
      int error_class = of_message;
      static_cast<void>(MPI_Error_class(of_message, &error_class));
      if (error_class == MPI_ERR_TRUNCATE) fail_for_size(i, "more", expected_[index_of(slot, i)]);
      const std::string peer = std::to_string(i % size());
      handle_.fail_with(
          mpi_error(of_message, i < size() ? "MPI_Irecv" : "MPI_Isend", handle_.here() + ", with rank " + peer));
    }
    handle_.fail_with(mpi_error(code, "MPI_Testall", handle_.here()));
  }

  [[noreturn]] void fail_for_timeout(int slot) {
    std::string missing;
    for (int peer = 0; peer < size(); ++peer) {
      const bool receives = is_under_way(slot, peer);
      const bool sends = is_under_way(slot, size() + peer);
      if (!receives && !sends) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(peer);
      if (has_sent_something_else(peer)) missing += " (which has called something else)";
    }
    handle_.fail_with(communicator_error("slamb: " + handle_.here() + ": after " +
                                         std::to_string(handle_.options().timeout.count()) +
                                         " ms messages had not come or gone: " + missing));
  }

  bool is_under_way(int slot, int message) {
    MPI_Request& request = requests_[index_of(slot, message)];
    int done = 1;
    if (request == MPI_REQUEST_NULL) return false;
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0;
  }

  bool has_sent_something_else(int peer) {
    int found = 0;
    MPI_Status status;
    if (MPI_Iprobe(peer, MPI_ANY_TAG, handle_.get(), &found, &status) != MPI_SUCCESS || found == 0) return false;
    return status.MPI_TAG != tag(0) && status.MPI_TAG != tag(2);
  }

  /// MPI may write to what is received into after a failure, and go on doing so: only a message that has not begun to
  /// arrive can be given up.
  void keep_if_failed() noexcept {
    int finalized = 0;
    if (!handle_.has_failed() || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      const bool is_receive = i % statuses_.size() < statuses_.size() / 2;
      if (is_receive) static_cast<void>(MPI_Cancel(&requests_[i]));
      static_cast<void>(MPI_Request_free(&requests_[i]));
    }
    static_cast<void>(new (std::nothrow) std::vector<std::byte>(std::move(memory_)));
  }

  mpi_handle handle_;
  std::vector<MPI_Status> statuses_;   // [2][size] of the slot that is waited for: receives, sends
  std::vector<MPI_Request> requests_;  // [slots][2][size]
  std::vector<std::size_t> expected_;  // [slots][2][size] bytes of the receives under way
  std::vector<std::byte> memory_;
};

}  // namespace slamb::detail
