// A stand-in for hipCUB's header: declares what slamb uses of it.
#pragma once

#include <hip/hip_runtime.h>

namespace hipcub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING };

template <typename T, int Threads, BlockScanAlgorithm Algorithm = BLOCK_SCAN_RAKING, int ThreadsY = 1, int ThreadsZ = 1>
class BlockScan {
 public:
  struct TempStorage {
    unsigned char bytes[sizeof(T)];
  };
  __device__ BlockScan(TempStorage&);
  __device__ void ExclusiveSum(T, T&, T&);
};

}  // namespace hipcub
