// Recipes that only the tests use.
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

double device_tests::replay_slamb_product(const test_support::trace& given) {
  return test_support::detail::replay_slamb_form<slamb::cuda_backend, slamb::rescaling::product>(given);
}

double device_tests::replay_slamb_blend(const test_support::trace& given) {
  return test_support::detail::replay_slamb_form<slamb::cuda_backend, slamb::rescaling::blend>(given);
}

std::unique_ptr<device_tests::optimizer> device_tests::slamb_by_differences_on_device(ingredients from) {
  using random_bytes = slamb::chain<slamb::random_k<>, slamb::int8>;
  return on_device<
      slamb::sync::slamb_by_differences<slamb::cuda_thread_communicator, random_bytes, slamb::cuda_backend>>(
      std::move(from));
}
