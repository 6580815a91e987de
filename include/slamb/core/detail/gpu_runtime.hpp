// The runtime of the GPU: CUDA's, or HIP's under CUDA's names. The headers of the device side use no other runtime header. Plain C++:
// needs neither nvcc nor hipcc.
#pragma once

#include "slamb/core/config.hpp"

#if !defined(SLAMB_HIP)
#include <cuda_runtime_api.h>
#else
#include <hip/hip_runtime.h>

#include <cstddef>

/// The names of the CUDA runtime that slamb uses, for HIP 6 or later. Only slamb finds them.
namespace slamb::detail::cuda_names {

using cudaError_t = ::hipError_t;
using cudaStream_t = ::hipStream_t;
using cudaEvent_t = ::hipEvent_t;
using cudaPointerAttributes = ::hipPointerAttribute_t;
using cudaStreamCaptureStatus = ::hipStreamCaptureStatus;
using cudaMemPool_t = ::hipMemPool_t;
using cudaMemAccessDesc = ::hipMemAccessDesc;

// Errors. HIP has no driver that is older than its runtime, but some of its runtimes lack functions.
inline constexpr auto cudaSuccess = ::hipSuccess;
inline constexpr auto cudaErrorMemoryAllocation = ::hipErrorOutOfMemory;
inline constexpr auto cudaErrorNotReady = ::hipErrorNotReady;
inline constexpr auto cudaErrorCallRequiresNewerDriver = ::hipErrorNotSupported;
inline constexpr auto cudaErrorStreamCaptureImplicit = ::hipErrorStreamCaptureImplicit;
inline constexpr auto cudaErrorPeerAccessAlreadyEnabled = ::hipErrorPeerAccessAlreadyEnabled;

inline constexpr unsigned cudaStreamNonBlocking = hipStreamNonBlocking;
inline constexpr unsigned cudaEventDisableTiming = hipEventDisableTiming;
inline constexpr auto cudaStreamCaptureStatusNone = ::hipStreamCaptureStatusNone;
inline constexpr auto cudaMemcpyDefault = ::hipMemcpyDefault;
inline constexpr auto cudaMemoryTypeDevice = ::hipMemoryTypeDevice;
inline constexpr auto cudaMemoryTypeManaged = ::hipMemoryTypeManaged;
inline constexpr auto cudaMemLocationTypeDevice = ::hipMemLocationTypeDevice;
inline constexpr auto cudaMemAccessFlagsProtReadWrite = ::hipMemAccessFlagsProtReadWrite;
inline constexpr auto cudaDevAttrMultiProcessorCount = ::hipDeviceAttributeMultiprocessorCount;
inline const cudaStream_t cudaStreamLegacy = hipStreamLegacy;
inline const cudaStream_t cudaStreamPerThread = hipStreamPerThread;

inline const char* cudaGetErrorName(cudaError_t code) { return ::hipGetErrorName(code); }
inline const char* cudaGetErrorString(cudaError_t code) { return ::hipGetErrorString(code); }
inline cudaError_t cudaGetLastError() { return ::hipGetLastError(); }

inline cudaError_t cudaGetDevice(int* device) { return ::hipGetDevice(device); }
inline cudaError_t cudaSetDevice(int device) { return ::hipSetDevice(device); }
inline cudaError_t cudaDeviceGetAttribute(int* value, ::hipDeviceAttribute_t which, int device) {
  return ::hipDeviceGetAttribute(value, which, device);
}
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return ::hipDeviceCanAccessPeer(can, device, peer);
}
inline cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return ::hipDeviceEnablePeerAccess(peer, flags);
}
inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return ::hipDeviceGetDefaultMemPool(pool, device);
}
inline cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, std::size_t count) {
  return ::hipMemPoolSetAccess(pool, list, count);
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return ::hipStreamCreateWithFlags(stream, flags);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) { return ::hipStreamDestroy(stream); }
inline cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return ::hipStreamGetDevice(stream, device);
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return ::hipStreamIsCapturing(stream, status);
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) { return ::hipStreamQuery(stream); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return ::hipStreamSynchronize(stream); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return ::hipStreamWaitEvent(stream, event, flags);
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return ::hipEventCreateWithFlags(event, flags);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return ::hipEventDestroy(event); }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return ::hipEventRecord(event, stream); }
inline cudaError_t cudaEventQuery(cudaEvent_t event) { return ::hipEventQuery(event); }
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) { return ::hipEventSynchronize(event); }

inline cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  return ::hipMallocAsync(memory, bytes, stream);
}
inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) { return ::hipFreeAsync(memory, stream); }
inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return ::hipHostMalloc(memory, bytes, hipHostMallocDefault);
}
inline cudaError_t cudaFreeHost(void* memory) { return ::hipHostFree(memory); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, ::hipMemcpyKind kind,
                                   cudaStream_t stream) {
  return ::hipMemcpyAsync(to, from, bytes, kind, stream);
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return ::hipMemsetAsync(memory, value, bytes, stream);
}
/// For memory that HIP does not know it reports an error; CUDA reports success, and another type than those of devices.
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* memory) {
  const cudaError_t answer = ::hipPointerGetAttributes(found, memory);
  if (answer != ::hipErrorInvalidValue) return answer;
  static_cast<void>(::hipGetLastError());
  *found = {};
  found->type = ::hipMemoryTypeUnregistered;
  return cudaSuccess;
}

inline cudaError_t cudaLaunchKernel(const void* kernel, ::dim3 blocks, ::dim3 threads, void** arguments,
                                    std::size_t shared_bytes, cudaStream_t stream) {
  return ::hipLaunchKernel(kernel, blocks, threads, arguments, shared_bytes, stream);
}
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                                 std::size_t shared_bytes) {
  return ::hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
}

}  // namespace slamb::detail::cuda_names

namespace slamb {
using namespace detail::cuda_names;
}
#endif
