// A Communicator over MPI for buffers on GPUs. Payloads go through pinned host memory, or MPI accesses the memory of GPUs
// itself. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/communicator/cuda/staged_communicator.hpp"
#include "slamb/communicator/mpi_communicator.hpp"
#include "slamb/communicator/mpi_device_options.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/runtime/cuda_stream.hpp"

namespace slamb {

/// One rank of an MPI communicator whose buffers are in the memory of a GPU, for cuda_backend: a
/// staged_communicator<mpi_communicator> that can also give MPI the pointers to the memory of the GPU. Move this handle into the
/// rank's optimizer. Its calls, exceptions, costs and failures are those of staged_communicator. `mpi_options::timeout` is also that
/// of the wait for the stream.
///
/// *Cost*: staged, as staged_communicator. Direct, a call waits once for the stream. all_reduce_sum is always staged. Memory:
/// `staging_bytes` of pinned host memory, and mpi_communicator's.
/// *Determinism*: the bits of mpi_communicator with both transports, because the host makes the sums.
class cuda_mpi_communicator {
 public:
  using transport_type = mpi_device_options::transport_type;

  /// Uses a copy of `comm`. All its ranks must construct one at this point, with equal options.
  ///
  /// @throws std::invalid_argument, std::logic_error, mpi_error, communicator_error as mpi_communicator; std::invalid_argument
  ///   also for a transport that MPI reports as missing; communicator_error also if options differ
  /// @throws cuda_error
  explicit cuda_mpi_communicator(MPI_Comm comm = MPI_COMM_WORLD, const mpi_device_options& options = {})
      : cuda_mpi_communicator(mpi_communicator(comm, detail::validated(options).messages), options) {}

  /// Uses `comm` itself, as mpi_communicator::borrow. All its ranks must call this at this point, with equal options.
  ///
  /// @throws as the constructor and mpi_communicator::borrow
  static cuda_mpi_communicator borrow(MPI_Comm comm, const mpi_device_options& options = {}) {
    return {mpi_communicator::borrow(comm, detail::validated(options).messages), options};
  }

  int rank() const noexcept { return staged_.host().rank(); }
  int size() const noexcept { return staged_.host().size(); }
  /// The MPI handle; null after a move from this object.
  MPI_Comm native_handle() const noexcept { return staged_.host().native_handle(); }
  /// The transport in use, staged or direct. Equal on all ranks.
  transport_type transport() const noexcept { return transport_; }

  /// `values` [n], on the device, become their sum over ranks, ((x₀ + x₁) + x₂) + …; integers wrap around.
  template <detail::summable T>
  void all_reduce_sum(std::span<T> values, cudaStream_t stream) {
    staged_.all_reduce_sum(values, stream);
  }

  /// `values` [n], on the device, become the values of rank `root`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void broadcast(std::span<T> values, int root, cudaStream_t stream) {
    if (transport_ == transport_type::staged) return staged_.broadcast(values, root, stream);
    require_fit(detail::broadcast_fault(root, size()));
    staged_.run_on_host(detail::call_of<T>(collective::broadcast, values.size(), root), stream,
                        [&](mpi_communicator& host) { host.broadcast(values, root, host_stream{}); });
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order; both on the device. `mine` may be this rank's chunk of
  /// `all`.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_gather(std::span<const T> mine, std::span<T> all, cudaStream_t stream) {
    if (transport_ == transport_type::staged) return staged_.all_gather(mine, all, stream);
    require_fit(detail::all_gather_fault(mine.size(), all.size(), size()));
    staged_.run_on_host(detail::call_of<T>(collective::all_gather, mine.size()), stream,
                        [&](mpi_communicator& host) { host.all_gather_by(copies_on{stream}, mine, all); });
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n]; both on the device. The two do not
  /// overlap.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void all_to_all(std::span<const T> send, std::span<T> receive, cudaStream_t stream) {
    if (transport_ == transport_type::staged) return staged_.all_to_all(send, receive, stream);
    require_fit(detail::all_to_all_fault(send.size(), receive.size(), size()));
    staged_.run_on_host(detail::call_of<T>(collective::all_to_all, send.size()), stream,
                        [&](mpi_communicator& host) { host.all_to_all_by(copies_on{stream}, send, receive); });
  }

  /// As staged_communicator. @{
  void check() { staged_.check(); }
  void wait(cudaStream_t stream) { staged_.wait(stream); }
  void abort(const std::string& reason) { staged_.abort(reason); }
  /// @}

 private:
  /// Enqueues copies on a stream.
  struct copies_on {
    cudaStream_t stream;
    void operator()(void* to, const void* from, std::size_t bytes) const {
      detail::cuda::copy_async(to, from, bytes, stream);
    }
  };

  cuda_mpi_communicator(mpi_communicator host, const mpi_device_options& options)
      : transport_(agreed_transport(host, options)),
        staged_(std::move(host), {.bytes = options.staging_bytes, .timeout = options.messages.timeout}) {}

  static void require_fit(const std::string& fault) {
    if (!fault.empty()) throw std::invalid_argument("slamb: " + fault);
  }

  static transport_type agreed_transport(mpi_communicator& host, const mpi_device_options& options) {
    struct sizes {
      std::uint64_t staging_bytes;
      std::uint64_t piece_bytes;
      std::uint64_t message_bytes;
      transport_type transport;
      std::uint32_t has_direct;
    };
    const sizes mine{options.staging_bytes, options.messages.piece_bytes, options.messages.message_bytes,
                     options.transport, detail::mpi_takes_cuda_pointers().value_or(false) ? 1U : 0U};
    std::vector<sizes> all(static_cast<std::size_t>(host.size()));
    host.all_gather(std::span<const sizes>(&mine, 1), std::span<sizes>(all), host_stream{});
    bool has_direct = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const differs = all[i].transport != all[0].transport           ? "transport"
                                  : all[i].staging_bytes != all[0].staging_bytes ? "staging_bytes"
                                  : all[i].piece_bytes != all[0].piece_bytes     ? "messages.piece_bytes"
                                  : all[i].message_bytes != all[0].message_bytes ? "messages.message_bytes"
                                                                                 : nullptr;
      if (differs != nullptr) {
        const std::string reason = std::string("slamb: mpi_device_options::") + differs + " of rank " +
                                   std::to_string(i) + " differs from rank 0's, but it must be the same on all ranks";
        host.abort(reason);
        throw communicator_error(reason);
      }
      has_direct = has_direct && all[i].has_direct != 0;
    }
    if (options.transport != transport_type::automatic) return options.transport;
    return has_direct ? transport_type::direct : transport_type::staged;
  }

  transport_type transport_;
  staged_communicator<mpi_communicator> staged_;
};

static_assert(capability::has_all_reduce_sum<cuda_mpi_communicator, float, cudaStream_t>);
static_assert(capability::has_all_gather<cuda_mpi_communicator, std::byte, cudaStream_t>);
static_assert(capability::has_all_to_all<cuda_mpi_communicator, std::byte, cudaStream_t>);
static_assert(capability::has_broadcast<cuda_mpi_communicator, std::byte, cudaStream_t>);

}  // namespace slamb
