// The CUDA backend's settings: what a user names and a recipe makes its executor of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "slamb/backend/cuda/detail/executor.hpp"
#include "slamb/backend/cuda/detail/launcher.cuh"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/executor.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/detail/pass/arena.hpp"

namespace slamb {

namespace detail::cuda {

/// Memory of the current device's pool, in the order of a stream. Throws out_of_memory where that has no more.
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

/// Settings of the CUDA backend: parameters, gradients and state in the memory of the device that is current when the
/// optimizer is constructed, passes as kernels on one stream. That device is current again in every call of the optimizer.
///
/// A step is enqueued and not waited for. *Determinism*: the same bits from run to run on one kind of device; sums are added
/// in another order than on the host.
struct cuda_backend {
  cudaStream_t stream = nullptr;  ///< of all that the optimizer does, on that device; null: the default stream
  /// Two functions, both or neither; neither: cudaMallocAsync. If `deallocate` waits for the device, as cudaFree does, a peer
  /// that has died hangs the optimizer's destructor, unless the communicator has failed or was aborted before.
  allocator memory{};
  std::size_t cache_bytes = std::numeric_limits<std::size_t>::max();  ///< as host_backend::cache_bytes; all at once

  using stream_type = cudaStream_t;
  using executor_type = detail::cuda::executor<detail::cuda::launcher>;

  void validate() const {}
  executor_type make_executor(std::uint64_t /*elements*/) const {
    return executor_type(detail::cuda::launcher(stream));
  }
  allocator make_allocator() const {
    return memory.allocate || memory.deallocate ? memory : detail::cuda::stream_allocator(stream);
  }
};

static_assert(backend<cuda_backend> && detail::backend_executor<cuda_backend::executor_type>);

}  // namespace slamb
