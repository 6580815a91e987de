// A stand-in for HIP's header, for a machine without HIP: declares those of HIP's names that slamb uses, and defines nothing. It has
// none of CUDA's names, so a source that uses one does not compile. Declared as in hip/hip_runtime_api.h and hip/amd_detail/ of HIP 6.
#ifndef SLAMB_TESTS_HIP_STAND_IN
#define SLAMB_TESTS_HIP_STAND_IN

#include <stddef.h>

#if defined(__clang__) && defined(__HIP__)
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#else  // HIP's header, too, defines all but __shared__ as nothing for other compilers
#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#endif

struct dim3 {
  unsigned x, y, z;
  constexpr __host__ __device__ dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotReady = 600,
  hipErrorPeerAccessAlreadyEnabled = 704,
  hipErrorNotSupported = 801,
  hipErrorStreamCaptureImplicit = 906
};
typedef int hipDevice_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef struct ihipMemPoolHandle_t* hipMemPool_t;
enum hipDeviceAttribute_t { hipDeviceAttributeMultiprocessorCount = 63 };
enum hipMemcpyKind { hipMemcpyDefault = 4 };
enum hipStreamCaptureStatus { hipStreamCaptureStatusNone = 0 };
enum hipMemoryType { hipMemoryTypeUnregistered = 0, hipMemoryTypeDevice = 2, hipMemoryTypeManaged = 3 };
struct hipPointerAttribute_t {
  enum hipMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
  int isManaged;
  unsigned allocationFlags;
};
enum hipMemLocationType { hipMemLocationTypeDevice = 1 };
struct hipMemLocation {
  hipMemLocationType type;
  int id;
};
enum hipMemAccessFlags { hipMemAccessFlagsProtReadWrite = 3 };
struct hipMemAccessDesc {
  hipMemLocation location;
  hipMemAccessFlags flags;
};
#define hipStreamNonBlocking 0x01
#define hipEventDisableTiming 0x2
#define hipHostMallocDefault 0x0
#define hipStreamLegacy ((hipStream_t)1)
#define hipStreamPerThread ((hipStream_t)2)

extern "C" {
const char* hipGetErrorName(hipError_t);
const char* hipGetErrorString(hipError_t);
hipError_t hipGetLastError(void);
hipError_t hipGetDevice(int*);
hipError_t hipSetDevice(int);
hipError_t hipDeviceGetAttribute(int*, hipDeviceAttribute_t, int);
hipError_t hipDeviceCanAccessPeer(int*, int, int);
hipError_t hipDeviceEnablePeerAccess(int, unsigned int);
hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t*, int);
hipError_t hipMemPoolSetAccess(hipMemPool_t, const hipMemAccessDesc*, size_t);
hipError_t hipStreamCreateWithFlags(hipStream_t*, unsigned int);
hipError_t hipStreamDestroy(hipStream_t);
hipError_t hipStreamGetDevice(hipStream_t, hipDevice_t*);
hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus*);
hipError_t hipStreamQuery(hipStream_t);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned int flags = 0);
hipError_t hipEventCreateWithFlags(hipEvent_t*, unsigned);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipEventRecord(hipEvent_t, hipStream_t = nullptr);
hipError_t hipEventQuery(hipEvent_t);
hipError_t hipEventSynchronize(hipEvent_t);
hipError_t hipMallocAsync(void**, size_t, hipStream_t);
hipError_t hipFreeAsync(void*, hipStream_t);
hipError_t hipHostMalloc(void**, size_t, unsigned int flags);
hipError_t hipHostFree(void*);
hipError_t hipMemcpyAsync(void*, const void*, size_t, hipMemcpyKind, hipStream_t = nullptr);
hipError_t hipMemsetAsync(void*, int, size_t, hipStream_t = nullptr);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t*, const void*);
hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t = 0, hipStream_t = nullptr);
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int*, const void*, int, size_t);
}
hipError_t hipMallocAsync(void**, size_t, hipMemPool_t, hipStream_t);
template <class T>
hipError_t hipMallocAsync(T**, size_t, hipStream_t);
template <class T>
hipError_t hipHostMalloc(T**, size_t, unsigned int flags = hipHostMallocDefault);
template <class F>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int*, F, int, size_t = 0);

// For devices. With HIP only hipcc has them.
struct slamb_tests_index {
  unsigned x, y, z;
};
extern const __device__ slamb_tests_index threadIdx, blockIdx, blockDim, gridDim;
extern const __device__ int warpSize;
__device__ void __syncthreads();
__device__ int __syncthreads_or(int);
__device__ unsigned int atomicAdd(unsigned int*, unsigned int);
__device__ int __shfl_xor(int, int, int width = warpSize);
__device__ unsigned int __shfl_xor(unsigned int, int, int width = warpSize);
__device__ float __shfl_xor(float, int, int width = warpSize);
__device__ unsigned int __float_as_uint(float);
__device__ float __uint_as_float(unsigned int);
__device__ long long int __double_as_longlong(double);
__device__ unsigned int __popc(unsigned int);
__device__ unsigned int __ffs(int);
__device__ unsigned int __ffs(unsigned int);
#if !defined(__clang__)  // which has these in a header of its own
__device__ float __fadd_rn(float, float);
__device__ float __fsub_rn(float, float);
__device__ float __fdiv_rn(float, float);
__device__ float __fsqrt_rn(float);
#endif

#endif
