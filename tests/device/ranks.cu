#include "ranks.hpp"

#include <cstdint>
#include <slamb/backend/cuda/cuda_backend.cuh>
#include <slamb/communicator/cuda/thread_communicator.cuh>
#include <slamb/testing/check_communicator.hpp>
#include <utility>

#if defined(SLAMB_DEVICE_TESTS_NCCL)
#include <slamb/nccl.hpp>
#endif

namespace {

class own_ranks final : public device_tests::ranks {
 public:
  explicit own_ranks(slamb::thread_communicator host) : own_(std::move(host)) {}

  int rank() const override { return own_.rank(); }
  int size() const override { return own_.size(); }
  void all_reduce_sum(std::span<float> values, cudaStream_t stream) override { own_.all_reduce_sum(values, stream); }
  void all_reduce_sum(std::span<std::int32_t> values, cudaStream_t stream) override {
    own_.all_reduce_sum(values, stream);
  }
  void broadcast(std::span<float> values, int root, cudaStream_t stream) override {
    own_.broadcast(values, root, stream);
  }
  void all_gather(std::span<const float> mine, std::span<float> all, cudaStream_t stream) override {
    own_.all_gather(mine, all, stream);
  }
  void all_to_all(std::span<const float> send, std::span<float> receive, cudaStream_t stream) override {
    own_.all_to_all(send, receive, stream);
  }

 private:
  slamb::cuda_thread_communicator own_;
};

}  // namespace

std::unique_ptr<device_tests::ranks> device_tests::ranks_on_device(slamb::thread_communicator host) {
  return std::make_unique<own_ranks>(std::move(host));
}

void device_tests::check_ranks_on_device(slamb::thread_communicator host, cudaStream_t stream) {
  slamb::cuda_thread_communicator own(std::move(host));
  slamb::check_communicator<double, std::int32_t>(own, slamb::cuda_backend{.stream = stream});
}

bool device_tests::check_nccl_on_device([[maybe_unused]] cudaStream_t stream) {
#if defined(SLAMB_DEVICE_TESTS_NCCL)
  slamb::nccl_communicator own(slamb::nccl_communicator::unique_id(), 0, 1);
  slamb::check_communicator<double>(own, slamb::cuda_backend{.stream = stream});
  return true;
#else
  return false;
#endif
}
