// Version and the few macros that let one function body serve the host and the device.
#pragma once

#define SLAMB_VERSION_MAJOR 0
#define SLAMB_VERSION_MINOR 1
#define SLAMB_VERSION_PATCH 0

// Element functions are plain inline functions; under nvcc they are compiled for the device as well.
#if defined(__CUDACC__)
#define SLAMB_HOST_DEVICE __host__ __device__
#define SLAMB_NO_EXEC_CHECK _Pragma("nv_exec_check_disable")
#else
#define SLAMB_HOST_DEVICE
#define SLAMB_NO_EXEC_CHECK  // before templates that call what they are given: on the device only what can run there
#endif

// The host backend's vector types are wrappers that must vanish, for a call would pass 64-byte vectors through memory, and
// a tile's loop must hold everything that it calls. With a sanitizer's checks in it, that only takes the compiler's time.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SLAMB_ALWAYS_INLINE inline __attribute__((always_inline))
#define SLAMB_FLATTEN __attribute__((flatten))
#else
#define SLAMB_ALWAYS_INLINE inline
#define SLAMB_FLATTEN
#endif

// Functions of one element, which run in the innermost loop of every backend.
#define SLAMB_ELEMENT SLAMB_HOST_DEVICE SLAMB_ALWAYS_INLINE
