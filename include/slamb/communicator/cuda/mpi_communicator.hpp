// A Communicator over MPI for buffers on GPUs. Payloads go through pinned host memory, or MPI accesses the memory of GPUs
// itself. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "slamb/communicator/cuda/mpi_transfer.hpp"
#include "slamb/communicator/mpi_communicator.hpp"
#include "slamb/communicator/mpi_device_options.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace slamb {

/// One rank of an MPI communicator whose buffers are in the memory of a GPU, for cuda_backend. Move this handle into the rank's
/// optimizer. Everything else is as for mpi_communicator.
///
/// It belongs to the device that is current at construction. The streams must belong to that device, and the device must be
/// current in each call.
///
/// Every collective
/// @throws std::logic_error while the stream is captured into a graph, before any work
/// @throws std::invalid_argument, mpi_error, communicator_error as mpi_communicator; communicator_error also if the work on the
///   stream is not done within `mpi_options::timeout`
/// @throws cuda_error with the error of the runtime, of this call or of earlier work on the stream; it is reported to the peers
///
/// **Failures are final**, as for mpi_communicator. After a failure, copies from and to the buffers of that call may also still
/// be running. The pinned memory is kept until the program ends.
///
/// *Stream*: the host sends the messages, so a call waits until work enqueued before is done. Not capturable into a graph. A
/// call returns when the result is enqueued: later work on the stream may use it.
/// *Cost*: staged, the payload goes to the host and back in parts of at most `staging_bytes`/2. One part is copied while another
/// is sent. Direct, the call waits once for the stream. all_reduce_sum is always staged. Memory: `staging_bytes` of pinned host
/// memory, and mpi_communicator's.
/// *Determinism*: the bits of mpi_communicator with both transports, because the host makes the sums.
class cuda_mpi_communicator {
 public:
  /// Uses a copy of `comm`. All its ranks must construct one at this point, with equal options.
  ///
  /// @throws std::invalid_argument, std::logic_error, mpi_error, communicator_error as mpi_communicator; std::invalid_argument
  ///   also for a transport that MPI reports as missing; communicator_error also if options differ
  /// @throws cuda_error
  explicit cuda_mpi_communicator(MPI_Comm comm = MPI_COMM_WORLD, const mpi_device_options& options = {})
      : transfer_(mpi_communicator(comm, detail::validated(options).messages), options) {}

  /// Uses `comm` itself, as mpi_communicator::borrow. All its ranks must call this at this point, with equal options.
  ///
  /// @throws as the constructor and mpi_communicator::borrow
  static cuda_mpi_communicator borrow(MPI_Comm comm, const mpi_device_options& options = {}) {
    return cuda_mpi_communicator(
        detail::cuda_mpi_transfer(mpi_communicator::borrow(comm, detail::validated(options).messages), options));
  }

  int rank() const noexcept { return transfer_.host().rank(); }
  int size() const noexcept { return transfer_.host().size(); }
  /// The MPI handle; null after a move from this object.
  MPI_Comm native_handle() const noexcept { return transfer_.host().native_handle(); }
  /// The transport in use, staged or direct. Equal on all ranks.
  mpi_device_options::transport_type transport() const noexcept { return transfer_.transport(); }

  /// `values` [n], on the device, become their sum over ranks, ((x₀ + x₁) + x₂) + …; integers wrap around.
  template <detail::summable T>
  void all_reduce_sum(std::span<T> values, cudaStream_t stream) {
    const auto bytes = std::as_writable_bytes(values);
    const copies_on copy{stream};
    const auto by_host = [&] {
      transfer_.in_parts(
          bytes.size(), 1, stream, [&](const part& p) { copy(p.memory, bytes.data() + p.offset, p.size); },
          [&](const part& p) {
            host().all_reduce_sum(std::span<T>(reinterpret_cast<T*>(p.memory), p.size / sizeof(T)), host_stream{});
          },
          [&](const part& p) { copy(bytes.data() + p.offset, p.memory, p.size); });
    };
    transfer_.run<T>({.kind = collective::all_reduce, .count = values.size()}, stream, by_host, by_host);
  }

  /// `values` [n], on the device, become the values of rank `root`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void broadcast(std::span<T> values, int root, cudaStream_t stream) {
    mpi_communicator::require_fit(detail::broadcast_fault(root, size()));
    const auto bytes = std::as_writable_bytes(values);
    const bool is_root = rank() == root;
    const copies_on copy{stream};
    const auto by_host = [&] {
      transfer_.in_parts(
          bytes.size(), 1, stream,
          [&](const part& p) {
            if (is_root) copy(p.memory, bytes.data() + p.offset, p.size);
          },
          [&](const part& p) { host().broadcast(std::span(p.memory, p.size), root, host_stream{}); },
          [&](const part& p) {
            if (!is_root) copy(bytes.data() + p.offset, p.memory, p.size);
          });
    };
    transfer_.run<T>(
        {.kind = collective::broadcast, .count = values.size(), .root = root}, stream,
        [&] {
          transfer_.wait(stream);
          host().broadcast(values, root, host_stream{});
        },
        by_host);
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order; both on the device. `mine` may be this rank's chunk of
  /// `all`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_gather(std::span<const T> mine, std::span<T> all, cudaStream_t stream) {
    mpi_communicator::require_fit(detail::all_gather_fault(mine.size(), all.size(), size()));
    const std::size_t chunk = mine.size_bytes();
    const auto* const from = std::as_bytes(mine).data();
    auto* const to = std::as_writable_bytes(all).data();
    const copies_on copy{stream};
    const auto by_host = [&] {
      copy(to + offset_of(rank(), chunk), from, chunk);
      transfer_.in_parts(
          chunk, size(), stream,
          [&](const part& p) { copy(p.memory + offset_of(rank(), p.size), from + p.offset, p.size); },
          [&](const part& p) {
            const std::span<const std::byte> own(p.memory + offset_of(rank(), p.size), p.size);
            host().all_gather(own, std::span(p.memory, offset_of(size(), p.size)), host_stream{});
          },
          [&](const part& p) {
            host().for_each_peer([&](int peer) {
              copy(to + offset_of(peer, chunk) + p.offset, p.memory + offset_of(peer, p.size), p.size);
            });
          });
    };
    transfer_.run<T>(
        {.kind = collective::all_gather, .count = mine.size()}, stream,
        [&] {
          transfer_.wait(stream);
          host().all_gather_by(copy, mine, all);
        },
        by_host);
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; both on the device. The two do not
  /// overlap.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_to_all(std::span<const T> send, std::span<T> receive, cudaStream_t stream) {
    mpi_communicator::require_fit(detail::all_to_all_fault(send.size(), receive.size(), size()));
    const std::size_t chunk = send.size_bytes() / static_cast<std::size_t>(size());
    const auto* const from = std::as_bytes(send).data();
    auto* const to = std::as_writable_bytes(receive).data();
    const copies_on copy{stream};
    const auto by_host = [&] {
      copy(to + offset_of(rank(), chunk), from + offset_of(rank(), chunk), chunk);
      transfer_.in_parts(
          chunk, 2 * size(), stream,
          [&](const part& p) {
            host().for_each_peer([&](int peer) {
              copy(p.memory + offset_of(peer, p.size), from + offset_of(peer, chunk) + p.offset, p.size);
            });
          },
          [&](const part& p) {
            const std::size_t bytes = offset_of(size(), p.size);
            host().all_to_all_by([](auto...) {}, std::span<const std::byte>(p.memory, bytes),
                                 std::span(p.memory + bytes, bytes));
          },
          [&](const part& p) {
            host().for_each_peer([&](int peer) {
              copy(to + offset_of(peer, chunk) + p.offset, p.memory + offset_of(size() + peer, p.size), p.size);
            });
          });
    };
    transfer_.run<T>(
        {.kind = collective::all_to_all, .count = send.size()}, stream,
        [&] {
          transfer_.wait(stream);
          host().all_to_all_by(copy, send, receive);
        },
        by_host);
  }

  /// Checks whether a peer has reported a failure. Does not wait.
  ///
  /// @throws communicator_error if one has; the first failure, if this communicator has failed before
  void check() { host().check(); }

  /// Waits until all work on `stream` is done, and looks for failed peers meanwhile. Not allowed while the stream is captured.
  ///
  /// @throws std::logic_error, cuda_error, communicator_error as a collective
  void wait(cudaStream_t stream) {
    transfer_.require_usable(stream, "wait");
    transfer_.guarded([&] { transfer_.wait(stream); });
  }

  /// Makes the communicator fail, for a rank that cannot continue. Every later call throws `reason`, and its peers fail too.
  /// Does nothing if it has failed before or was moved from.
  void abort(const std::string& reason) { host().abort(reason); }

 private:
  using part = detail::cuda_mpi_transfer::part;

  /// Enqueues copies on a stream.
  struct copies_on {
    cudaStream_t stream;
    void operator()(void* to, const void* from, std::size_t bytes) const {
      detail::cuda::copy_async(to, from, bytes, stream);
    }
  };

  explicit cuda_mpi_communicator(detail::cuda_mpi_transfer transfer) : transfer_(std::move(transfer)) {}

  mpi_communicator& host() noexcept { return transfer_.host(); }

  static std::size_t offset_of(int i, std::size_t size) noexcept { return mpi_communicator::offset_of(i, size); }

  detail::cuda_mpi_transfer transfer_;
};

static_assert(capability::has_all_reduce_sum<cuda_mpi_communicator, float, cudaStream_t>);
static_assert(capability::has_all_gather<cuda_mpi_communicator, std::byte, cudaStream_t>);
static_assert(capability::has_all_to_all<cuda_mpi_communicator, std::byte, cudaStream_t>);
static_assert(capability::has_broadcast<cuda_mpi_communicator, std::byte, cudaStream_t>);

}  // namespace slamb
