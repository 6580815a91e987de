#include "../../bench/gpu/stepper_of.cuh"
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

std::unique_ptr<device_tests::optimizer> device_tests::adamw_on_device(ingredients from) {
  return on_device<slamb::adamw<slamb::cuda_thread_communicator, slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_adamw(const test_support::trace& given) {
  return test_support::replay_adamw<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::adamw_stepper(rank_parts from) {
  return stepper_on_device<slamb::adamw<slamb::cuda_thread_communicator, timed_backend>>(std::move(from));
}
