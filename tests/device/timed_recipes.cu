// Recipes shared by the tests and slamb_bench_gpu, in one source, so that nvcc compiles their common code once.
#include "../../bench/gpu/stepper_of.cuh"
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

std::unique_ptr<device_tests::optimizer> device_tests::adamw_on_device(ingredients from) {
  return on_device<slamb::adamw<slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_adamw(const test_support::trace& given) {
  return test_support::replay_adamw<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::adamw_stepper(rank_parts from) {
  return stepper_on_device<slamb::adamw<slamb::cuda_thread_communicator, timed_backend>>(std::move(from));
}

std::unique_ptr<device_tests::optimizer> device_tests::lamb_on_device(ingredients from) {
  return on_device<slamb::lamb<slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_lamb(const test_support::trace& given) {
  return test_support::replay_lamb<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::lamb_stepper(rank_parts from) {
  return stepper_on_device<slamb::lamb<slamb::cuda_thread_communicator, timed_backend>>(std::move(from));
}

std::unique_ptr<device_tests::optimizer> device_tests::slamb_on_device(ingredients from) {
  return on_device<slamb::slamb<slamb::random_k<>, slamb::rescaled_trust_ratio<>, slamb::cuda_backend>>(
      std::move(from));
}

std::unique_ptr<bench::stepper> bench::slamb_stepper(rank_parts from) {
  return stepper_on_device<
      slamb::slamb<slamb::cuda_thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, timed_backend>>(
      std::move(from));
}

std::unique_ptr<device_tests::optimizer> device_tests::one_bit_adam_on_device(ingredients from) {
  return on_device<slamb::one_bit_adam<slamb::sign, slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_one_bit_adam(const test_support::trace& given) {
  return test_support::replay_one_bit_adam<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::one_bit_adam_stepper(rank_parts from) {
  return stepper_on_device<slamb::one_bit_adam<slamb::cuda_thread_communicator, slamb::sign, timed_backend>>(
      std::move(from));
}

std::unique_ptr<device_tests::optimizer> device_tests::one_bit_lamb_on_device(ingredients from) {
  return on_device<slamb::one_bit_lamb<slamb::sign, slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_one_bit_lamb(const test_support::trace& given) {
  return test_support::replay_one_bit_lamb<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::one_bit_lamb_stepper(rank_parts from) {
  return stepper_on_device<slamb::one_bit_lamb<slamb::cuda_thread_communicator, slamb::sign, timed_backend>>(
      std::move(from));
}
