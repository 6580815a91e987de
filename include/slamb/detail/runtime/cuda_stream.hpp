// Functions of a CUDA stream: enqueues copies, and tells if the stream is captured into a graph. Plain C++: needs no nvcc.
#pragma once

#include <cstddef>
#include <span>

#include "slamb/core/concepts.hpp"
#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"

namespace slamb::detail::cuda {

/// Enqueues a copy between host or device memory. Does nothing if `to` equals `from`.
/// @throws cuda_error
inline void copy_async(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes != 0 && to != from)
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

/// True if `stream` is being captured into a graph.
/// @throws cuda_error
inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t answer = cudaStreamIsCapturing(stream, &status);
  if (answer == cudaErrorStreamCaptureImplicit) {  // another stream is; this is the legacy stream, which never is
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(answer, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace slamb::detail::cuda

namespace slamb::detail {

/// For collectives that copy, as those of self_communicator.
template <>
struct stream_copy<cudaStream_t> {
  static void run(std::span<const std::byte> from, std::span<std::byte> to, cudaStream_t stream) {
    cuda::copy_async(to.data(), from.data(), from.size(), stream);
  }
};

}  // namespace slamb::detail
