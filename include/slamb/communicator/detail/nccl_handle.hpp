// An ncclComm_t whose calls are waited for with a timeout, whose first failure is final, and which is released once.
// nccl_communicator.hpp builds the collectives on it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "slamb/communicator/nccl_error.hpp"
#include "slamb/communicator/nccl_options.hpp"
#include "slamb/core/error.hpp"

namespace slamb::detail {

/// True for the result of a call that has not failed so far; it may still run in the background.
constexpr bool is_accepted(ncclResult_t result) noexcept { return result == ncclSuccess || result == ncclInProgress; }

/// Calls f(communicator), one of the functions that end it, and stops waiting for it after `limit`. Each of them can hang:
/// ncclCommAbort while a CUDA graph with collectives of the communicator lives, ncclCommFinalize and ncclCommDestroy if a peer is
/// gone. The call runs in a thread of its own, which is detached after `limit` and owns everything it uses. After that the caller
/// must not use the communicator any more.
/// @return its result; nothing if it has not returned
inline std::optional<ncclResult_t> call_within(std::chrono::milliseconds limit, ncclResult_t (*f)(ncclComm_t),
                                               ncclComm_t communicator) noexcept {
  int device = 0;
  const bool has_device = cudaGetDevice(&device) == cudaSuccess;
  const auto call = [=] {
    if (has_device) static_cast<void>(cudaSetDevice(device));  // a new thread begins on device 0
    return f(communicator);
  };
  try {
    std::packaged_task<ncclResult_t()> task(call);
    std::future<ncclResult_t> result = task.get_future();
    std::thread calling(std::move(task));
    if (result.wait_for(limit) == std::future_status::ready) {
      calling.join();
      return result.get();
    }
    calling.detach();
    return std::nullopt;
  } catch (...) {  // no thread could be started, and nothing has been called yet
    return call();
  }
}

class nccl_handle {
 public:
  /// Rank `rank` of the `size` ranks that call this with the same `id`.
  nccl_handle(const ncclUniqueId& id, int rank, int size, nccl_options options) : nccl_handle(options, true) {
    require_in(size >= 1, "nccl_communicator: size", size, "≥ 1");
    if (rank < 0 || rank >= size) {
      throw_out_of_range("nccl_communicator: rank", rank, "in [0, " + std::to_string(size) + ")");
    }
    rank_ = rank;
    size_ = size;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    finish(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig");
  }

  /// A handle to a borrowed communicator, which it does not destroy.
  nccl_handle(ncclComm_t comm, nccl_options options) : nccl_handle(options, false) {
    if (comm == nullptr) throw std::invalid_argument("slamb: nccl_communicator::borrow: the communicator is null");
    comm_ = comm;
    finish(status(), "ncclCommGetAsyncError");
    require_success(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
    require_success(ncclCommCount(comm_, &size_), "ncclCommCount");
  }

  nccl_handle(nccl_handle&& other) noexcept
      : options_(other.options_),
        owned_(other.owned_),
        comm_(std::exchange(other.comm_, nullptr)),
        rank_(other.rank_),
        size_(other.size_),
        failure_(std::exchange(other.failure_, nullptr)) {}
  nccl_handle& operator=(nccl_handle other) noexcept {  // the previous communicator is released with `other`
    std::swap(options_, other.options_);
    std::swap(owned_, other.owned_);
    std::swap(comm_, other.comm_);
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
    std::swap(failure_, other.failure_);
    return *this;
  }

  /// Waits for enqueued work, up to the timeout. ncclCommDestroy alone would wait forever for a dead peer.
  ~nccl_handle() {
    if (!owned_ || comm_ == nullptr) return;
    const auto finalized = call_within(options_.abort_timeout, ncclCommFinalize, comm_);
    if (!finalized) return;  // an abort would free the communicator while that call uses it
    const bool is_idle = poll(*finalized) == ncclSuccess;
    static_cast<void>(call_within(options_.abort_timeout, is_idle ? ncclCommDestroy : ncclCommAbort, comm_));
  }

  ncclComm_t get() const noexcept { return comm_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool has_failed() const noexcept { return failure_ != nullptr; }
  std::string rank_text() const { return "rank " + std::to_string(rank_) + " of " + std::to_string(size_); }

  void throw_if_unusable() const {
    if (failure_) std::rethrow_exception(failure_);
    if (comm_ == nullptr) throw communicator_error("slamb: an nccl_communicator was called after it was moved from");
  }

  /// NCCL's status of earlier calls; ncclInProgress while one is running.
  ncclResult_t status() const noexcept {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
    return result == ncclSuccess ? state : result;
  }

  /// Polls until `done()`, up to the limits of the options. True if it was done.
  template <class Done>
  bool wait_until(Done done) const {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    for (std::uint64_t polls = 1; !done(); ++polls) {
      if (polls == options_.max_polls || std::chrono::steady_clock::now() >= deadline) return false;
      if (polls < polls_before_sleep || options_.poll_interval.count() == 0) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(options_.poll_interval);
      }
    }
    return true;
  }

  /// Waits for the end of a call that returned `result`. Fails unless it succeeds.
  void finish(ncclResult_t result, const char* call) { require_success(poll(result), call); }

  void require_success(ncclResult_t result, const char* call) {
    if (result != ncclSuccess) fail(result, call);
  }

  [[noreturn]] void fail(ncclResult_t result, const char* call) {
    const char* last = ncclGetLastError(comm_);  // read before the communicator is aborted
    const std::string what = result == ncclInProgress ? "was not done within " + limits() : nccl_failure_text(result);
    fail_with(nccl_error(result, call, "of " + rank_text() + " " + what, last == nullptr ? "" : last));
  }

  template <class Error>
  [[noreturn]] void fail_with(const Error& error) {
    break_off(error);
    std::rethrow_exception(failure_);
  }

  /// Marks the communicator as failed: every later call throws `error`. Aborts it, which stops enqueued work, if it is owned or
  /// `abort_borrowed` is set.
  template <class Error>
  void break_off(const Error& error) {
    failure_ = std::make_exception_ptr(error);
    if (!owned_ && !options_.abort_borrowed) return;
    if (comm_ != nullptr)
      static_cast<void>(call_within(options_.abort_timeout, ncclCommAbort, std::exchange(comm_, nullptr)));
  }

 private:
  nccl_handle(nccl_options options, bool owned) : options_(options), owned_(owned) {
    for (const auto& [limit, name] : {std::pair(&options_.timeout, "nccl_options::timeout"),
                                      std::pair(&options_.abort_timeout, "nccl_options::abort_timeout")}) {
      *limit = std::min<std::chrono::milliseconds>(*limit, std::chrono::hours(24 * 365));
      require_in(limit->count() > 0, name, static_cast<double>(limit->count()), "> 0 ms");
    }
    require_in(options_.poll_interval.count() >= 0, "nccl_options::poll_interval",
               static_cast<double>(options_.poll_interval.count()), "≥ 0 µs");
  }

  /// Waits for a call that returned `result`, and returns its final result; ncclInProgress after the timeout.
  ncclResult_t poll(ncclResult_t result) const {
    if (result == ncclInProgress) wait_until([&] { return (result = status()) != ncclInProgress; });
    return result;
  }

  /// "300000 ms", "300000 ms or 100 polls".
  std::string limits() const {
    const std::string time = std::to_string(options_.timeout.count()) + " ms";
    return options_.max_polls == 0 ? time : time + " or " + std::to_string(options_.max_polls) + " polls";
  }

  static constexpr std::uint64_t polls_before_sleep = 64;

  nccl_options options_;
  bool owned_;
  ncclComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  std::exception_ptr failure_;  // the first failure
};

}  // namespace slamb::detail
