// Calls every function of nccl_communicator, linked with NCCL and the CUDA runtime themselves. Never run.
#include <cstddef>
#include <span>
#include <utility>

#include "slamb/nccl.hpp"

namespace {

template <class T>
void move_all(slamb::nccl_communicator& communicator, std::span<T> values, std::span<T> other, cudaStream_t stream) {
  communicator.broadcast(values, 0, stream);
  communicator.all_gather(std::span<const T>(values), other, stream);
  communicator.all_to_all(std::span<const T>(values), other, stream);
}

}  // namespace

int main() {
  auto own = slamb::nccl_communicator(slamb::nccl_communicator::unique_id(), 0, 1);
  auto borrowed = slamb::nccl_communicator::borrow(own.native_handle());
  const cudaStream_t stream = nullptr;
  move_all(own, std::span<float>{}, std::span<float>{}, stream);
  move_all(borrowed, std::span<std::byte>{}, std::span<std::byte>{}, stream);
  own.all_reduce_sum(std::span<float>{}, stream);
  own.check();
  own.wait(stream);
  own.abort("done");
  own = std::move(borrowed);
}
