#include "../../bench/gpu/stepper_of.cuh"
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

std::unique_ptr<device_tests::optimizer> device_tests::one_bit_adam_on_device(ingredients from) {
  return on_device<slamb::one_bit_adam<slamb::cuda_thread_communicator, slamb::sign, slamb::cuda_backend>>(
      std::move(from));
}

double device_tests::replay_one_bit_adam(const test_support::trace& given) {
  return test_support::replay_one_bit_adam<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::one_bit_adam_stepper(rank_parts from) {
  return stepper_on_device<slamb::one_bit_adam<slamb::cuda_thread_communicator, slamb::sign, timed_backend>>(
      std::move(from));
}
