// Which GPU is current in a thread, and that streams are of it. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/call_scope.hpp"

namespace slamb::detail::cuda {

/// The current device, of which `stream` must be. Null, the default stream, is of whatever device is current.
///
/// @throws std::invalid_argument if the stream is of another device. A runtime before CUDA 12.8, or a driver before it, cannot
///   tell: then the first kernel on the stream is a cuda_error ("invalid resource handle")
/// @throws cuda_error
inline int device_of(cudaStream_t stream) {
  int current = 0;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
#if CUDART_VERSION >= 12080
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return current;
  int its = 0;
  const cudaError_t answer = cudaStreamGetDevice(stream, &its);
  if (answer == cudaErrorCallRequiresNewerDriver) return static_cast<void>(cudaGetLastError()), current;
  check_cuda(answer, "cudaStreamGetDevice");
  if (its != current)
    throw std::invalid_argument("slamb: the stream is of device " + std::to_string(its) + ", but device " +
                                std::to_string(current) + " is current; call cudaSetDevice(" + std::to_string(its) +
                                ") first, or give a stream of device " + std::to_string(current));
#else
  static_cast<void>(stream);
#endif
  return current;
}

/// Makes `device` current in this thread until the end of what is returned, which restores the device before. It throws
/// nothing: if the runtime fails, what is done with the device fails too, and says so. A thread that has chosen no device has
/// device 0, and to restore that makes a context there, since CUDA 12: so threads should call cudaSetDevice first.
/// *Cost*: some ten nanoseconds where the device is current already.
[[nodiscard]] inline ::slamb::detail::call_scope device_guard(int device) noexcept {
  int before = device;
  if (cudaGetDevice(&before) != cudaSuccess || before == device || cudaSetDevice(device) != cudaSuccess) return {};
  return {before, [](int restored) { static_cast<void>(cudaSetDevice(restored)); }};
}

}  // namespace slamb::detail::cuda
