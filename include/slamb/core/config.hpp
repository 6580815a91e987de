// The version, checks of compiler flags, and the macros that let one function body serve the host and the device.
#pragma once

// All headers for users include this one first. Compilers continue after an #error, and would report thousands of lines that they
// cannot read. They stop at an #include of a file that does not exist.
#if __cplusplus <= 201703L
#error "slamb: this library is C++20, but an older standard is asked for; compile with -std=c++20"
#include "slamb: the compiler stops here, for the reason above"
#endif
#if defined(__GNUC__) && !defined(__GXX_RTTI)
#error "slamb: this library needs run-time type information (typeid and dynamic_cast); compile without -fno-rtti"
#include "slamb: the compiler stops here, for the reason above"
#endif
#if defined(__GNUC__) && !defined(__EXCEPTIONS)
#error "slamb: this library reports errors by exceptions; compile without -fno-exceptions"
#include "slamb: the compiler stops here, for the reason above"
#endif

#define SLAMB_VERSION_MAJOR 0
#define SLAMB_VERSION_MINOR 1
#define SLAMB_VERSION_PATCH 0

// The library is header-only. With SLAMB_SEPARATE_COMPILATION, functions that are no templates are only declared in headers, and a
// program must compile slamb/impl/source.hpp in one of its sources, or link slamb::compiled.
#if defined(SLAMB_SEPARATE_COMPILATION)
#define SLAMB_DECL
#else
#define SLAMB_DECL inline
#endif

// SLAMB_HIP: the device side uses HIP instead of CUDA. hipcc defines it. A program may define it for a compiler of the host.
// SLAMB_DEVICE_COMPILER: nvcc or hipcc compiles this source. SLAMB_ON_DEVICE: it compiles code of the device now.
#if defined(__HIP__) && !defined(SLAMB_HIP)
#define SLAMB_HIP
#endif
#if defined(__CUDACC__) || defined(__HIPCC__)
#define SLAMB_DEVICE_COMPILER
#endif
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define SLAMB_ON_DEVICE
#endif
#if defined(__HIPCC__)
#include <hip/hip_runtime.h>  // has __host__, __device__ and the functions of devices; nvcc needs no header for these
#endif

// Element functions are plain inline functions; under nvcc and hipcc they are compiled for the device as well.
#if defined(SLAMB_DEVICE_COMPILER)
#define SLAMB_HOST_DEVICE __host__ __device__
#else
#define SLAMB_HOST_DEVICE
#endif
#if defined(__CUDACC__)
#define SLAMB_NO_EXEC_CHECK _Pragma("nv_exec_check_disable")
#else
#define SLAMB_NO_EXEC_CHECK  // before templates that call a function from their caller, which on a device can run there
#endif

// A kernel has at most `threads` threads a block, and as few registers that a multiprocessor holds `blocks` blocks. Its argument is
// read in place. The second number of HIP's __launch_bounds__ has another meaning, and its arguments are always read in place.
#if defined(SLAMB_HIP)
#define SLAMB_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads)
#define SLAMB_GRID_CONSTANT
#else
#define SLAMB_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define SLAMB_GRID_CONSTANT __grid_constant__
#endif

// Before a loop of a kernel whose iterations are few. nvcc would unroll it if its body has no branch, and then needs more registers.
#if defined(SLAMB_ON_DEVICE)
#define SLAMB_NO_UNROLL _Pragma("unroll 1")
#else
#define SLAMB_NO_UNROLL
#endif

// The functions of the host backend's vector types must be inlined, because a call would pass 64-byte vectors through memory. A
// tile's loop must inline everything that it calls. With a sanitizer this would only cost compile time.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SLAMB_ALWAYS_INLINE inline __attribute__((always_inline))
#define SLAMB_FLATTEN __attribute__((flatten))
#else
#define SLAMB_ALWAYS_INLINE inline
#define SLAMB_FLATTEN
#endif

// SLAMB_ROUND(x) is a statement. It rounds x, a variable with the result of a product, before x is used. Some processors can fuse
// a product with a sum, which rounds once instead of twice. g++ fuses them by default, and clang within an expression. Then the
// bits would depend on the processor, the flags and the arrangement of the code. The empty assembly statement keeps product and
// sum apart. It costs nothing on x86-64 and on aarch64. On others it moves x through memory, which is right on every processor.
#if defined(__HIP_DEVICE_COMPILE__)
#define SLAMB_ROUND(x) \
  __asm__("" : "+v"(x))  // a vector register; HIP's __fmul_rn is a plain product, which clang may fuse
#elif defined(__AVX512F__)
#define SLAMB_ROUND(x) __asm__("" : "+v"(x))
#elif defined(__FMA__) || defined(__FMA4__)
#define SLAMB_ROUND(x) __asm__("" : "+x"(x))
#elif defined(__SSE2__)
#define SLAMB_ROUND(x) static_cast<void>(x)  // this processor cannot fuse them
#elif defined(__aarch64__)
#define SLAMB_ROUND(x) __asm__("" : "+w"(x))
#else
#define SLAMB_ROUND(x) __asm__("" : "+m"(x))
#endif

// Behind the parameters of a lambda: it is inlined on the host.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(SLAMB_DEVICE_COMPILER)
#define SLAMB_INLINED __attribute__((always_inline))
#else
#define SLAMB_INLINED
#endif

// Functions of one element, which run in the innermost loop of every backend.
#define SLAMB_ELEMENT SLAMB_HOST_DEVICE SLAMB_ALWAYS_INLINE
