// The ranks of an NCCL communicator: collectives on GPU memory, enqueued on a stream. If a peer fails, they end in an
// exception, never in a hang.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "slamb/communicator/detail/collective_call.hpp"
#include "slamb/communicator/detail/nccl_handle.hpp"
#include "slamb/communicator/nccl_error.hpp"
#include "slamb/communicator/nccl_types.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// One rank of an NCCL communicator, owned or borrowed: a handle to be moved into the rank's optimizer.
///
/// All ranks make the same collectives in the same order with the same sizes, each from one thread at a time. Ranks that share
/// a process have a thread each. An owned communicator belongs to the device that is current at construction. This device must
/// also be current in its calls; an optimizer ensures this. Its calls do not block. A borrowed communicator may block or not.
/// Calls of one that blocks have no timeout; only `wait` has one.
///
/// Every collective
/// @throws std::invalid_argument for a wrong root or sizes that do not fit, before any call of NCCL; the communicator does not
///   change
/// @throws nccl_error if NCCL reports an error of this call or an earlier one, or has not enqueued it within
///   `nccl_options::timeout`; communicator_error if the handle was moved from
///
/// **Failures are final.** The first error aborts the communicator, once. Each later call throws it again without a call of
/// NCCL. An abort that takes longer than `nccl_options::abort_timeout` continues in a thread of its own; work on the streams
/// may then hang. Peers learn of the failure from NCCL, or their `wait` times out. A borrowed communicator is not aborted,
/// because others may be using it, unless `nccl_options::abort_borrowed` is set: work on its streams may then hang until its
/// owner aborts it. With abort_borrowed the owner must not use, destroy or abort it after a failure.
///
/// *Stream*: collectives return when they are enqueued, and may be captured into a graph. Wait for them with `wait`:
/// cudaStreamSynchronize hangs if a peer has died. Empty spans enqueue nothing, because sizes are equal on all ranks.
/// *Cost*: checks a flag before each collective, and several times after it. NCCL may start a thread for each collective of a
/// communicator that does not block. Bytes on the wire: near `bytes_sent_by`.
/// *Determinism*: sums have the same bits on all ranks. They have the same bits in every run as long as NCCL chooses the same
/// algorithm, which depends on its version, topology, sizes and environment (NCCL_ALGO, NCCL_PROTO).
class nccl_communicator {
 public:
  static constexpr bool is_local = false;

  /// The id that the ranks of one communicator share. One rank makes it and sends it to the others by other means.
  /// @throws nccl_error
  static ncclUniqueId unique_id() {
    ncclUniqueId id;
    detail::check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return id;
  }

  /// Rank `rank` of `size` ranks, which all call this with the same `id`, on the current device. Waits for its peers.
  ///
  /// @throws std::invalid_argument if `rank` is not in [0, size), or an option is out of range
  /// @throws nccl_error if NCCL fails or the peers do not come within `options.timeout`
  nccl_communicator(const ncclUniqueId& id, int rank, int size, nccl_options options = {})
      : handle_(id, rank, size, options) {}

  /// A handle to `comm`, which it does not destroy and must not outlive. Rank and size are those of `comm`.
  ///
  /// @throws std::invalid_argument if `comm` is null or an option is out of range
  /// @throws nccl_error if NCCL fails, or `comm` is not ready within `options.timeout`
  static nccl_communicator borrow(ncclComm_t comm, nccl_options options = {}) {
    return nccl_communicator(detail::nccl_handle(comm, options));
  }

  /// Moves the communicator; the source can be destroyed or assigned to. The destructor releases an owned communicator and
  /// throws nothing: it waits for enqueued work, up to the timeout, then destroys the communicator, or aborts it if the wait
  /// failed. A rank that cannot go on must call `abort` first, otherwise the destructor waits for the whole timeout. NCCL also
  /// waits for CUDA graphs that hold collectives of the communicator: destroy these first, otherwise the destructor takes
  /// `timeout` and `abort_timeout`. ncclCommFinalize and ncclCommDestroy can hang if a peer is gone, although no call has failed:
  /// each is left behind with the communicator, in a thread of its own, after `abort_timeout`.
  nccl_communicator(nccl_communicator&&) noexcept = default;
  nccl_communicator& operator=(nccl_communicator&&) noexcept = default;
  ~nccl_communicator() = default;

  int rank() const noexcept { return handle_.rank(); }
  int size() const noexcept { return handle_.size(); }
  /// NCCL's handle; null after an abort or a move.
  ncclComm_t native_handle() const noexcept { return handle_.get(); }

  /// `values` [n], on the device, become their sum over ranks; integers wrap around.
  template <detail::nccl_summable T>
  void all_reduce_sum(std::span<T> values, cudaStream_t stream) {
    if (!begin(values.size())) return;
    handle_.finish(
        ncclAllReduce(values.data(), values.data(), values.size(), nccl_type<T>::value, ncclSum, handle_.get(), stream),
        "ncclAllReduce");
  }

  /// `values` [n], on the device, become those of rank `root`.
  template <detail::nccl_movable T>
  void broadcast(std::span<T> values, int root, cudaStream_t stream) {
    require_fit(detail::broadcast_fault(root, size()));
    if (!begin(values.size())) return;
    handle_.finish(
        ncclBroadcast(values.data(), values.data(), values.size(), nccl_type<T>::value, root, handle_.get(), stream),
        "ncclBroadcast");
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order; both on the device. `mine` may be its own place in
  /// `all`.
  template <detail::nccl_movable T>
  void all_gather(std::span<const T> mine, std::span<T> all, cudaStream_t stream) {
    require_fit(detail::all_gather_fault(mine.size(), all.size(), size()));
    if (!begin(mine.size())) return;
    handle_.finish(ncclAllGather(mine.data(), all.data(), mine.size(), nccl_type<T>::value, handle_.get(), stream),
                   "ncclAllGather");
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; both on the device, without
  /// overlap.
  ///
  /// One group of sends and receives. It includes the rank's own chunk, so that one call enqueues either all of the exchange or
  /// nothing.
  template <detail::nccl_movable T>
  void all_to_all(std::span<const T> send, std::span<T> receive, cudaStream_t stream) {
    require_fit(detail::all_to_all_fault(send.size(), receive.size(), size()));
    if (!begin(send.size())) return;
    exchange(send.data(), receive.data(), send.size() / static_cast<std::size_t>(size()), stream);
  }

  /// Checks if NCCL has found an error since the last call. Does not wait.
  ///
  /// @throws nccl_error if it has; the first failure if this communicator has failed before; communicator_error if moved from
  void check() {
    handle_.throw_if_unusable();
    const ncclResult_t result = handle_.status();
    if (!detail::is_accepted(result)) handle_.fail(result, "ncclCommGetAsyncError");
  }

  /// Waits until all work on `stream` is done, and checks for errors meanwhile. Must not be called while the stream is
  /// captured.
  ///
  /// @throws nccl_error if NCCL has found an error, or the stream is not done within `nccl_options::timeout`
  /// @throws cuda_error if the stream failed
  void wait(cudaStream_t stream) {
    handle_.throw_if_unusable();
    cudaError_t state = cudaErrorNotReady;
    const bool ended = handle_.wait_until([&] {
      state = cudaStreamQuery(stream);
      if (state == cudaSuccess) return true;
      static_cast<void>(
          cudaGetLastError());  // CUDA also keeps "not ready" as the last error, which a later check would find
      if (state != cudaErrorNotReady) return true;
      check();
      return false;
    });
    if (!ended) handle_.fail(ncclInProgress, "cudaStreamQuery");
    if (state != cudaSuccess) handle_.fail_with(cuda_error(state, "cudaStreamQuery"));
    check();  // kernels that NCCL has stopped also end
  }

  /// The communicator fails with `reason`, which every later call throws. For a rank that cannot go on, so that its enqueued
  /// work does not wait for its peers. Does nothing if it has failed before or was moved from.
  void abort(const std::string& reason) {
    if (handle_.get() == nullptr || handle_.has_failed()) return;
    handle_.break_off(communicator_error("slamb: " + handle_.rank_text() + " was aborted: " + reason));
  }

 private:
  explicit nccl_communicator(detail::nccl_handle handle) noexcept : handle_(std::move(handle)) {}

  static void require_fit(const std::string& fault) {
    if (!fault.empty()) throw std::invalid_argument("slamb: " + fault);
  }

  /// True if there is something to enqueue; then NCCL is ready for it.
  bool begin(std::size_t size) {
    handle_.throw_if_unusable();
    if (size == 0) return false;
    handle_.finish(handle_.status(), "ncclCommGetAsyncError");
    return true;
  }

  template <class T>
  void exchange(const T* send, T* receive, std::size_t chunk, cudaStream_t stream) {
    handle_.require_success(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    const char* call = "ncclSend";
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t offset = static_cast<std::size_t>(peer) * chunk;
      call = "ncclSend";
      result = ncclSend(send + offset, chunk, nccl_type<T>::value, peer, handle_.get(), stream);
      if (!detail::is_accepted(result)) break;
      call = "ncclRecv";
      result = ncclRecv(receive + offset, chunk, nccl_type<T>::value, peer, handle_.get(), stream);
      if (!detail::is_accepted(result)) break;
    }
    const ncclResult_t ended = ncclGroupEnd();  // also after a failure: an open group would capture later calls
    if (!detail::is_accepted(result)) handle_.fail(result, call);
    handle_.finish(ended, "ncclGroupEnd");
  }

  detail::nccl_handle handle_;
};

static_assert(capability::has_all_reduce_sum<nccl_communicator, float, cudaStream_t>);
static_assert(capability::has_all_gather<nccl_communicator, std::byte, cudaStream_t>);
static_assert(capability::has_all_to_all<nccl_communicator, std::byte, cudaStream_t>);
static_assert(capability::has_broadcast<nccl_communicator, std::byte, cudaStream_t>);

}  // namespace slamb
