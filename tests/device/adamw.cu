#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

std::unique_ptr<device_tests::optimizer> device_tests::adamw_on_device(ingredients from) {
  return on_device<slamb::adamw<slamb::cuda_thread_communicator, slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_adamw(const test_support::trace& given) {
  return test_support::replay_adamw<slamb::cuda_backend>(given);
}
