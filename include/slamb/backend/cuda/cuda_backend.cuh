// The settings of the CUDA backend. A user passes them to an optimizer, and a recipe makes its launcher from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/backend/cuda/detail/launcher.cuh"
#include "slamb/backend/cuda/detail/stream_launcher.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/detail/kernel/launcher.hpp"
#include "slamb/detail/pass/arena.hpp"

namespace slamb {

namespace detail::cuda {

/// Allocates and frees memory of the current device's pool, in the order of `stream`.
/// `allocate` throws out_of_memory if the pool has no more, and cuda_error for other errors.
inline allocator stream_allocator(cudaStream_t stream) {
  return {.allocate =
              [stream](std::size_t bytes) {
                void* memory = nullptr;
                const cudaError_t code = cudaMallocAsync(&memory, bytes, stream);
                if (code == cudaErrorMemoryAllocation) {
                  static_cast<void>(cudaGetLastError());
                  throw out_of_memory(cuda_error(code, "cudaMallocAsync").what());
                }
                check_cuda(code, "cudaMallocAsync");
                return memory;
              },
          .deallocate = [stream](void* memory, std::size_t /*bytes*/) { cudaFreeAsync(memory, stream); }};
}

}  // namespace detail::cuda

/// Settings of the CUDA backend. Passes run as kernels on one stream. Parameters, gradients and state are in the memory of the
/// device that is current when the optimizer is constructed. Every call of the optimizer makes that device current.
///
/// *Stream*: a step is enqueued; the call does not wait for it.
/// *Determinism*: the same bits from run to run on one kind of device. Sums are added in another order than on the host.
struct cuda_backend {
  cudaStream_t stream = nullptr;  ///< the stream of all work of the optimizer, on that device; null: the default stream
  /// Set both functions or neither. Without them, memory comes from cudaMallocAsync. If `deallocate` waits for the device, as
  /// cudaFree does, a dead peer makes the optimizer's destructor hang, unless the communicator has failed or was aborted before.
  allocator memory{};
  /// As host_backend::cache_bytes. By default all tensors are one batch.
  std::size_t cache_bytes = std::numeric_limits<std::size_t>::max();

  using stream_type = cudaStream_t;
  using launcher_type = detail::cuda::stream_launcher<detail::cuda::launcher>;

  void validate() const {}
  launcher_type make_launcher(std::uint64_t /*elements*/) const {
    return launcher_type(detail::cuda::launcher(stream));
  }
  allocator make_allocator() const {
    return memory.allocate || memory.deallocate ? memory : detail::cuda::stream_allocator(stream);
  }
};

static_assert(backend<cuda_backend> && detail::backend_launcher<cuda_backend::launcher_type>);

}  // namespace slamb
