#include "../../bench/gpu/stepper_of.cuh"
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

std::unique_ptr<device_tests::optimizer> device_tests::lamb_on_device(ingredients from) {
  return on_device<slamb::lamb<slamb::cuda_thread_communicator, slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_lamb(const test_support::trace& given) {
  return test_support::replay_lamb<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::lamb_stepper(rank_parts from) {
  return stepper_on_device<slamb::lamb<slamb::cuda_thread_communicator, timed_backend>>(std::move(from));
}
