// An MPI_Comm whose first failure is final and is reported to the peers, so that an error on one rank ends in an exception on
// every rank. mpi_messages.hpp sends and receives with it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/mpi_error.hpp"
#include "slamb/communicator/mpi_options.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

class mpi_handle {
 public:
  /// The tag of failure reports, larger than all tags of other messages. Every MPI allows tags up to 32767.
  static constexpr int failure_tag = 32'000;

  /// A handle to a copy of `comm`, made by all its ranks together, or to `comm` itself.
  mpi_handle(MPI_Comm comm, bool owned, mpi_options options)
      : options_(validated(options)), owned_(owned), exceptions_(std::uncaught_exceptions()) {
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
  }

  mpi_handle(mpi_handle&& other) noexcept : options_(other.options_) { swap(other); }
  mpi_handle& operator=(mpi_handle other) noexcept { return swap(other), *this; }  // releases the previous communicator

  /// Does not free a communicator that has failed, because MPI may still use messages of it. If an exception destroys the
  /// handle, the communicator counts as failed and the peers are told, so that they do not wait for this rank.
  ~mpi_handle() {
    if (comm_ == MPI_COMM_NULL || failure_) return;
    int finalized = 0;
    if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    if (std::uncaught_exceptions() > exceptions_) {
      failed_handles() = true;
      try {
        tell_peers("an exception destroyed its communicator");
      } catch (const std::exception&) {  // no memory for the reason: peers detect it by their timeouts
        return;
      }
    } else if (owned_) {
      static_cast<void>(MPI_Comm_free(&comm_));
    }
  }

  MPI_Comm get() const noexcept { return comm_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const mpi_options& options() const noexcept { return options_; }
  bool has_failed() const noexcept { return failure_ != nullptr; }
  std::string rank_text() const { return "rank " + std::to_string(rank_) + " of " + std::to_string(size_); }

  /// True if a communicator of this process has failed. MPI_Finalize may hang then.
  static bool any_has_failed() noexcept { return failed_handles().load(); }

  void throw_if_unusable() const {
    if (failure_) std::rethrow_exception(failure_);
    if (comm_ == MPI_COMM_NULL)
      throw communicator_error("slamb: an mpi_communicator was called after it was moved from");
  }

  /// Begins a collective: errors name `call` from now on, and the number of calls increases by one.
  void begin(const collective_call& call) {
    throw_if_unusable();
    if (!is_callable_here())
      throw std::logic_error(
          "slamb: " + here() + " was called from a thread that did not start MPI, " +
          "but MPI was started for calls from one thread only; pass MPI_THREAD_SERIALIZED to MPI_Init_thread");
    if (!has_parts_) {
      call_ = call;
      is_in_call_ = true;
      ++calls_;
    }
    look_for_failed_peers();
  }
  void end() noexcept { is_in_call_ = has_parts_; }
  const collective_call& call() const noexcept { return call_; }
  std::uint64_t calls() const noexcept { return calls_; }

  /// Until `end_parts`, calls are parts of this one: errors name `call`. All parts share its number.
  void begin_parts(const collective_call& call) {
    begin(call);
    has_parts_ = true;
  }
  void end_parts() noexcept {
    has_parts_ = false;
    end();
  }

  /// "mpi_communicator of rank 1 of 4: all_reduce_sum of 100 float32".
  std::string here() const { return "mpi_communicator of " + rank_text() + (is_in_call_ ? ": " + to_text(call_) : ""); }

  /// Polls until `done()`, up to the timeout. True if it was done. Polls up to twice more at the end, because this process may
  /// itself have been stopped.
  template <class Done>
  bool wait_until(const Done& done) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t polls = 1; !done(); ++polls) {
      if (comm_ != MPI_COMM_NULL && polls % polls_between_looks == 0) look_for_failed_peers();
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited >= options_.timeout) return done() || done();
      if (waited < time_before_sleep || options_.poll_interval.count() == 0) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(options_.poll_interval);
      }
    }
    return true;
  }

  /// @throws communicator_error if a peer has reported a failure; the handle has failed then
  void look_for_failed_peers() {
    int found = 0;
    MPI_Status status;
    require_success(MPI_Iprobe(MPI_ANY_SOURCE, failure_tag, comm_, &found, &status), "MPI_Iprobe");
    if (found == 0) return;
    break_off(communicator_error("slamb: " + here() + ": rank " + std::to_string(status.MPI_SOURCE) +
                                 " has failed: " + reason_of(status)));
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

  /// Marks the communicator as failed: every later call throws `error`.
  template <class Error>
  void break_off(const Error& error) {
    break_off(std::make_exception_ptr(error));
  }
  void break_off(std::exception_ptr error) noexcept {
    failure_ = std::move(error);
    failed_handles() = true;
  }

  /// Reports the failure to all peers that can be reached, so that they fail too.
  void tell_peers(const std::string& reason) {
    if (comm_ == MPI_COMM_NULL) return;
    const auto* const text = new std::string(reason);  // never freed: MPI may read it as long as it runs
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer != rank_ && MPI_Isend(text->data(), static_cast<int>(text->size()), MPI_BYTE, peer, failure_tag, comm_,
                                     &request) == MPI_SUCCESS)
        static_cast<void>(MPI_Request_free(&request));
    }
  }

 private:
  static constexpr std::uint64_t polls_between_looks = 16;
  static constexpr std::chrono::microseconds time_before_sleep{200};
  static constexpr int reason_polls = 2000;  // each of half a millisecond

  static std::atomic<bool>& failed_handles() noexcept {
    static std::atomic<bool> any{false};
    return any;
  }

  void copy(MPI_Comm comm) {
    static_cast<void>(MPI_Comm_rank(comm, &rank_));  // for error messages
    static_cast<void>(MPI_Comm_size(comm, &size_));
    auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Comm_idup(comm, made.get(), &request);
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Comm_idup", here());
    int done = 0;
    const bool ended = wait_until([&] {
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      return code != MPI_SUCCESS || done != 0;
    });
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Test", here());
    if (!ended) {
      static_cast<void>(made.release());  // MPI may still write to it
      failed_handles() = true;
      throw communicator_error("slamb: " + here() + ": not all ranks constructed it within " +
                               std::to_string(options_.timeout.count()) + " ms");
    }
    comm_ = *made;
    require_success(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  /// The reason that a peer gave for its failure. It may not arrive if the peer has ended meanwhile.
  std::string reason_of(const MPI_Status& found) {
    int length = 0;
    if (MPI_Get_count(&found, MPI_BYTE, &length) != MPI_SUCCESS || length <= 0) return "it gave no reason";
    auto text = std::make_unique<std::string>(static_cast<std::size_t>(length), '\0');
    MPI_Request request = MPI_REQUEST_NULL;
    int done = 0;
    if (MPI_Irecv(text->data(), length, MPI_BYTE, found.MPI_SOURCE, failure_tag, comm_, &request) != MPI_SUCCESS)
      return "its reason could not be received";
    for (int polls = 0; polls < reason_polls; ++polls) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0) break;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    if (done != 0) return *text;
    static_cast<void>(text.release());  // MPI may still write to it
    return "its reason did not arrive";
  }

  auto members() noexcept {
    return std::tie(options_, owned_, exceptions_, comm_, rank_, size_, call_, is_in_call_, calls_, has_parts_,
                    failure_);
  }
  void swap(mpi_handle& other) noexcept {
    auto theirs = other.members();
    members().swap(theirs);
  }

  mpi_options options_;
  bool owned_ = false;
  int exceptions_ = 0;  // uncaught exceptions when the handle was made
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  collective_call call_{};
  bool is_in_call_ = false;
  std::uint64_t calls_ = 0;
  bool has_parts_ = false;
  std::exception_ptr failure_;  // the first failure
};

}  // namespace slamb::detail
