// Makes a GPU current in a thread for a time, and checks that streams belong to it. Plain C++: needs no nvcc.
#pragma once

#include <stdexcept>
#include <string>

#include "slamb/core/cuda_error.hpp"
#include "slamb/core/detail/call_scope.hpp"
#include "slamb/core/detail/gpu_runtime.hpp"

namespace slamb::detail::cuda {

/// Returns the current device, to which `stream` must belong. Null, the default stream, belongs to every device that is current.
///
/// @throws std::invalid_argument if the stream belongs to another device. A runtime or a driver before CUDA 12.8 cannot detect
///   this: then the launch of the first kernel on the stream throws a cuda_error ("invalid resource handle")
/// @throws cuda_error
inline int device_of(cudaStream_t stream) {
  int current = 0;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
#if defined(SLAMB_HIP) || CUDART_VERSION >= 12080
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return current;
  int its = 0;
  const cudaError_t answer = cudaStreamGetDevice(stream, &its);
  if (answer == cudaErrorCallRequiresNewerDriver) return static_cast<void>(cudaGetLastError()), current;
  check_cuda(answer, "cudaStreamGetDevice");
  if (its != current)
    throw std::invalid_argument("slamb: the stream belongs to device " + std::to_string(its) + ", but device " +
                                std::to_string(current) + " is current; call cudaSetDevice(" + std::to_string(its) +
                                ") first, or pass a stream of device " + std::to_string(current));
#else
  static_cast<void>(stream);
#endif
  return current;
}

/// Makes `device` current in this thread for the lifetime of the returned object, which then restores the device before. Does
/// not throw: if the runtime fails here, later work on the device fails too, and reports the error. A thread that has not called
/// cudaSetDevice has device 0. Since CUDA 12, restoring that device creates a context on it, so threads should call cudaSetDevice
/// first.
/// *Cost*: about ten nanoseconds if the device is current already.
[[nodiscard]] inline ::slamb::detail::call_scope device_guard(int device) noexcept {
  int before = device;
  if (cudaGetDevice(&before) != cudaSuccess || before == device || cudaSetDevice(device) != cudaSuccess) return {};
  return {before, [](int restored) { static_cast<void>(cudaSetDevice(restored)); }};
}

}  // namespace slamb::detail::cuda
