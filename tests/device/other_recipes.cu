// The recipes of the tests alone.
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

double device_tests::replay_slamb_product(const test_support::trace& given) {
  return test_support::detail::replay_slamb_form<slamb::cuda_backend, slamb::rescaling::product>(given);
}

double device_tests::replay_slamb_blend(const test_support::trace& given) {
  return test_support::detail::replay_slamb_form<slamb::cuda_backend, slamb::rescaling::blend>(given);
}

std::unique_ptr<device_tests::optimizer> device_tests::zero_one_adam_on_device(ingredients from) {
  return on_device<slamb::zero_one_adam<slamb::cuda_thread_communicator, slamb::sign, slamb::cuda_backend>>(
      std::move(from));
}

double device_tests::replay_zero_one_adam(const test_support::trace& given) {
  return test_support::replay_zero_one_adam<slamb::cuda_backend>(given);
}
