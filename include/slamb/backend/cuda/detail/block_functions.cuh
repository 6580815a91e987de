// What the launcher takes from the libraries and the intrinsic functions of a device, which CUDA and HIP name differently.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"

#if defined(SLAMB_HIP)
#include <hipcub/block/block_reduce.hpp>
#include <hipcub/block/block_scan.hpp>
#else
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#endif

namespace slamb::detail::cuda {

/// BlockReduce and BlockScan.
#if defined(SLAMB_HIP)
namespace block_primitives = ::hipcub;
#else
namespace block_primitives = ::cub;
#endif

/// Threads that exchange registers: a warp, or half of a wavefront of 64. Those whose number / warp_threads is the same.
inline constexpr unsigned warp_threads = 32;

/// The `value` of the thread whose number differs in the bits of `apart`, which is below warp_threads. All threads of the warp call it.
__device__ inline std::uint32_t value_across(std::uint32_t value, unsigned apart) {
#if defined(SLAMB_HIP)
  return __shfl_xor(value, static_cast<int>(apart), static_cast<int>(warp_threads));
#else
  return __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(apart));
#endif
}

}  // namespace slamb::detail::cuda
