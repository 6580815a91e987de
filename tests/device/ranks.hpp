// cuda_thread_communicator behind an interface, so that its tests are plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <slamb/communicator/thread_communicator.hpp>
#include <span>

namespace device_tests {

/// One rank. Spans are memory of the GPU.
class ranks {
 public:
  virtual ~ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void all_reduce_sum(std::span<float> values, cudaStream_t stream) = 0;
  virtual void all_reduce_sum(std::span<std::int32_t> values, cudaStream_t stream) = 0;
  virtual void broadcast(std::span<float> values, int root, cudaStream_t stream) = 0;
  virtual void all_gather(std::span<const float> mine, std::span<float> all, cudaStream_t stream) = 0;
  virtual void all_to_all(std::span<const float> send, std::span<float> receive, cudaStream_t stream) = 0;
};

std::unique_ptr<ranks> ranks_on_device(slamb::thread_communicator host);

/// Calls check_communicator on cuda_thread_communicator, in memory of the GPU. @throws as check_communicator
void check_ranks_on_device(slamb::thread_communicator host, cudaStream_t stream);
/// Calls it on an nccl_communicator of one rank. Returns false if this program is not linked with NCCL.
bool check_nccl_on_device(cudaStream_t stream);

}  // namespace device_tests
