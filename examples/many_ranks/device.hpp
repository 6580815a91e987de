// The device of all ranks: the host, or one GPU if nvcc compiles this. Everything else in this folder is the same for both.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <slamb/backend/cuda/cuda_backend.cuh>
#include <slamb/communicator/cuda/thread_communicator.cuh>

#include "../common/cuda_stream.hpp"
#else
#include <slamb/backend/host/host_backend.hpp>
#include <slamb/communicator/thread_communicator.hpp>
#endif

namespace many_ranks {

#ifdef __CUDACC__

/// Buffers in the memory of the GPU. @{
using rank_communicator = slamb::cuda_thread_communicator;
using rank_backend = slamb::cuda_backend;
/// @}

/// The GPU that is current when it is made, with a stream for each rank.
class rank_device {
 public:
  static constexpr const char* name = "cuda";

  explicit rank_device(int ranks) : streams_(static_cast<std::size_t>(ranks)) {
    programs::require_success(cudaGetDevice(&device_), "cudaGetDevice");
  }

  /// For the optimizer of a rank. Called on the thread of the rank, whose current device it sets.
  rank_backend backend_of(int rank) const {
    programs::require_success(cudaSetDevice(device_), "cudaSetDevice");
    return {.stream = streams_[static_cast<std::size_t>(rank)]};
  }

  /// Waits for all work on the GPU, the caller's too.
  void wait() const { programs::require_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

 private:
  std::deque<programs::cuda_stream> streams_;  // [ranks], which cannot be moved
  int device_ = 0;
};

#else

/// Buffers in host memory. @{
using rank_communicator = slamb::thread_communicator;
using rank_backend = slamb::host_backend;
/// @}

class rank_device {
 public:
  static constexpr const char* name = "cpu";

  explicit rank_device(int /*ranks*/) {}

  /// For the optimizer of a rank. Ranks run at the same time, so one needs no further threads.
  rank_backend backend_of(int /*rank*/) const { return {.threads = 1}; }

  void wait() const {}
};

#endif

}  // namespace many_ranks
