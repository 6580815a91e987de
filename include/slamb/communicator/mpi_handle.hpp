// An MPI_Comm over which bytes go to and fro, whose waits end, and whose first failure is final and told to the peers.
// mpi_communicator.hpp makes the collectives with it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "slamb/communicator/collective_call.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/communicator/mpi_options.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

namespace detail {

class mpi_handle {
 public:
  static constexpr int slots = 4;

  /// A handle to a copy of `comm`, which all its ranks make, or to `comm` itself.
  mpi_handle(MPI_Comm comm, bool owned, mpi_options options) : options_(validated(options)), owned_(owned) {
    require_mpi();
    require_intracommunicator(comm);
    if (owned) {
      copy(comm);
    } else {
      require_errors_returned(comm);
      comm_ = comm;
    }
    require_success(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    require_success(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    statuses_.resize(2 * static_cast<std::size_t>(size_));
    requests_.assign(slots * statuses_.size(), MPI_REQUEST_NULL);
    expected_.assign(slots * statuses_.size(), 0);
  }

  mpi_handle(mpi_handle&& other) noexcept : options_(other.options_) { swap(other); }
  mpi_handle& operator=(mpi_handle other) noexcept { return swap(other), *this; }  // which releases what was held

  /// A communicator that has failed is not freed: messages of its may be under way.
  ~mpi_handle() {
    if (!owned_ || comm_ == MPI_COMM_NULL || failure_) return;
    int finalized = 0;
    if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) static_cast<void>(MPI_Comm_free(&comm_));
  }

  MPI_Comm get() const noexcept { return comm_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool has_failed() const noexcept { return failure_ != nullptr; }
  std::size_t piece_bytes() const noexcept { return options_.piece_bytes; }
  std::string place() const { return "rank " + std::to_string(rank_) + " of " + std::to_string(size_); }

  /// Whether a communicator of this process has failed: MPI_Finalize may hang then.
  static bool any_has_failed() noexcept { return failed_handles().load(); }

  void throw_if_unusable() const {
    if (failure_) std::rethrow_exception(failure_);
    if (comm_ == MPI_COMM_NULL) throw communicator_error("slamb: a call of an mpi_communicator that was moved from");
  }

  /// From now on messages belong to `call`.
  void begin(const collective_call& call) {
    throw_if_unusable();
    call_ = call;
    look_for_failed_peers();
  }

  /// Starts to receive from `peer`, or to send to it. `bytes` ≤ 2^30; 0 are no message. At most one each way, peer, and
  /// slot at a time; messages between two ranks arrive in the order in which they are sent.
  void receive(int slot, int peer, void* to, std::size_t bytes) {
    if (bytes == 0) return;
    const std::size_t i = index_of(slot, peer);
    expected_[i] = bytes;
    require_success(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, tag(), comm_, &requests_[i]), "MPI_Irecv");
  }
  void send(int slot, int peer, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const std::size_t i = index_of(slot, size_ + peer);
    require_success(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, tag(), comm_, &requests_[i]), "MPI_Isend");
  }

  /// Waits until all messages of a slot have arrived, or fails.
  void wait(int slot) {
    int done = 0;
    const auto look = [&] {
      const int code = MPI_Testall(2 * size_, &requests_[index_of(slot, 0)], &done, statuses_.data());
      if (code != MPI_SUCCESS) fail_for_message(slot, code);
      return done != 0;
    };
    if (!wait_until(look)) fail_for_timeout(slot);
    require_sizes(slot);
  }

  /// Fails if a peer has said that it has failed.
  void look_for_failed_peers() {
    int found = 0;
    MPI_Status status;
    require_success(MPI_Iprobe(MPI_ANY_SOURCE, failure_tag, comm_, &found, &status), "MPI_Iprobe");
    if (found == 0) return;
    int length = 0;
    require_success(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count");
    std::string reason(static_cast<std::size_t>(length), '\0');
    require_success(MPI_Recv(reason.data(), length, MPI_BYTE, status.MPI_SOURCE, failure_tag, comm_, &status),
                    "MPI_Recv");
    break_off(communicator_error("slamb: " + here() + ": rank " + std::to_string(status.MPI_SOURCE) +
                                 " has failed: " + reason));
    std::rethrow_exception(failure_);
  }

  void require_success(int code, const char* call) {
    if (code != MPI_SUCCESS) fail_with(mpi_error(code, call, here()));
  }

  template <class Error>
  [[noreturn]] void fail_with(const Error& error) {
    tell_peers(error.what());
    break_off(error);
    std::rethrow_exception(failure_);
  }

  /// From now on every call throws `error`; what has not arrived will not be written any more.
  template <class Error>
  void break_off(const Error& error) {
    failure_ = std::make_exception_ptr(error);
    failed_handles() = true;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      const bool is_receive = i / static_cast<std::size_t>(size_) % 2 == 0;
      if (is_receive) static_cast<void>(MPI_Cancel(&requests_[i]));
      static_cast<void>(MPI_Request_free(&requests_[i]));
    }
  }

  /// Lets the peers fail too, as far as they can be reached.
  void tell_peers(const std::string& reason) {
    if (comm_ == MPI_COMM_NULL) return;
    static std::deque<std::string> told;  // MPI may read them as long as it runs
    const std::string& text = told.emplace_back(reason.substr(0, 1000));
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer != rank_ && MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, peer, failure_tag, comm_,
                                     &request) == MPI_SUCCESS)
        static_cast<void>(MPI_Request_free(&request));
    }
  }

 private:
  // Far from those of others on a communicator that is borrowed, and below 32767, which every MPI has.
  static constexpr int first_tag = 21'300;
  static constexpr int failure_tag = 21'310;
  static constexpr std::uint64_t polls_before_sleep = 1000;

  static std::atomic<bool>& failed_handles() noexcept {
    static std::atomic<bool> any{false};
    return any;
  }

  void copy(MPI_Comm comm) {
    static_cast<void>(MPI_Comm_rank(comm, &rank_));  // for messages
    static_cast<void>(MPI_Comm_size(comm, &size_));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm made = MPI_COMM_NULL;
    int code = MPI_Comm_idup(comm, &made, &request);
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Comm_idup", "mpi_communicator of " + place());
    int done = 0;
    const bool ended = wait_until([&] {
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      return code != MPI_SUCCESS || done != 0;
    });
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Test", "mpi_communicator of " + place());
    if (!ended) {
      failed_handles() = true;
      throw communicator_error("slamb: mpi_communicator of " + place() + ": not all ranks came to make it within " +
                               std::to_string(options_.timeout.count()) + " ms");
    }
    comm_ = made;
    require_success(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  /// Looks until `done()`, up to the timeout; whether it was.
  template <class Done>
  bool wait_until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    for (std::uint64_t polls = 1; !done(); ++polls) {
      if (comm_ != MPI_COMM_NULL && polls % 16 == 0) look_for_failed_peers();
      if (std::chrono::steady_clock::now() >= deadline) return false;
      if (polls < polls_before_sleep || options_.poll_interval.count() == 0) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(options_.poll_interval);
      }
    }
    return true;
  }

  int tag() const noexcept { return first_tag + static_cast<int>(call_.kind); }

  /// Of a request: receives of a slot by peer, then its sends by peer.
  std::size_t index_of(int slot, int message) const noexcept {
    return static_cast<std::size_t>(slot) * 2 * static_cast<std::size_t>(size_) + static_cast<std::size_t>(message);
  }

  /// "rank 1 of 4: all_reduce_sum of 100 float32".
  std::string here() const { return "mpi_communicator of " + place() + ": " + to_text(call_); }

  void require_sizes(int slot) {
    for (int peer = 0; peer < size_; ++peer) {
      std::size_t& expected = expected_[index_of(slot, peer)];
      if (expected == 0) continue;
      int received = 0;
      static_cast<void>(MPI_Get_count(&statuses_[static_cast<std::size_t>(peer)], MPI_BYTE, &received));
      if (static_cast<std::size_t>(received) != expected) fail_for_size(peer, std::to_string(received), expected);
      expected = 0;
    }
  }

  [[noreturn]] void fail_for_size(int peer, const std::string& received, std::size_t expected) {
    fail_with(communicator_error("slamb: " + here() + ": rank " + std::to_string(peer) + " sent " + received +
                                 " bytes where " + std::to_string(expected) +
                                 " were expected: it called this collective with another size"));
  }

  [[noreturn]] void fail_for_message(int slot, int code) {
    for (int i = 0; i < 2 * size_ && code == MPI_ERR_IN_STATUS; ++i) {
      const int of_message = statuses_[static_cast<std::size_t>(i)].MPI_ERROR;
      if (of_message == MPI_SUCCESS || of_message == MPI_ERR_PENDING) continue;
      int error_class = of_message;
      static_cast<void>(MPI_Error_class(of_message, &error_class));
      if (error_class == MPI_ERR_TRUNCATE) fail_for_size(i, "more", expected_[index_of(slot, i)]);
      const std::string peer = std::to_string(i % size_);
      fail_with(mpi_error(of_message, i < size_ ? "MPI_Irecv" : "MPI_Isend", here() + ", with rank " + peer));
    }
    fail_with(mpi_error(code, "MPI_Testall", here()));
  }

  [[noreturn]] void fail_for_timeout(int slot) {
    std::string missing;
    for (int peer = 0; peer < size_; ++peer) {
      const bool sends = is_under_way(slot, peer);
      const bool takes = is_under_way(slot, size_ + peer);
      if (!sends && !takes) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(peer) + called_by(peer);
    }
    fail_with(communicator_error("slamb: " + here() + ": after " + std::to_string(options_.timeout.count()) +
                                 " ms messages had not come or gone: " + missing));
  }

  bool is_under_way(int slot, int message) {
    MPI_Request& request = requests_[index_of(slot, message)];
    int done = 1;  // as those are that never were
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0;
  }

  /// " (which has called all_gather)" where that is known to be something else.
  std::string called_by(int peer) {
    using enum collective;
    for (const collective kind : {all_reduce, all_gather, all_to_all, broadcast}) {
      int found = 0;
      const int other_tag = first_tag + static_cast<int>(kind);
      if (kind == call_.kind || MPI_Iprobe(peer, other_tag, comm_, &found, MPI_STATUS_IGNORE) != MPI_SUCCESS) continue;
      if (found != 0) return std::string(" (which has called ") + to_text(kind) + ")";
    }
    return {};
  }

  auto members() noexcept {
    return std::tie(options_, owned_, comm_, rank_, size_, call_, requests_, expected_, statuses_, failure_);
  }
  void swap(mpi_handle& other) noexcept {
    auto theirs = other.members();
    members().swap(theirs);
  }

  mpi_options options_;
  bool owned_ = false;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  collective_call call_{};
  std::vector<MPI_Request> requests_;  // [slots][2][size] receives, sends
  std::vector<std::size_t> expected_;  // [slots][2][size] bytes of the receives under way
  std::vector<MPI_Status> statuses_;   // [2][size] of the slot that is waited for
  std::exception_ptr failure_;         // of the first failure
};

}  // namespace detail
}  // namespace slamb
