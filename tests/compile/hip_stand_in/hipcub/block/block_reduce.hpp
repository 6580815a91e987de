// A stand-in for hipCUB's header: declares what slamb uses of it.
#pragma once

#include <hip/hip_runtime.h>

namespace hipcub {

enum BlockReduceAlgorithm { BLOCK_REDUCE_WARP_REDUCTIONS };

template <typename T, int Threads, BlockReduceAlgorithm Algorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int ThreadsY = 1,
          int ThreadsZ = 1>
class BlockReduce {
 public:
  struct TempStorage {
    unsigned char bytes[sizeof(T)];
  };
  __device__ BlockReduce(TempStorage&);
  template <typename Operation>
  __device__ T Reduce(T input, Operation) {
    return input;
  }
};

}  // namespace hipcub
