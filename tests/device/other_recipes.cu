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
