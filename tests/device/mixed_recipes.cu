// Optimizers on parameters and gradients of sixteen bits, on the device, for replays.
#include "../support/replay.hpp"
#include "optimizers.hpp"
#include "replay_memory.cuh"

namespace {

using backend = slamb::precision::mixed<slamb::cuda_backend>;

}  // namespace

double device_tests::replay_bf16_adamw(const test_support::trace& given) {
  return test_support::replay_adamw<backend>(given);
}
double device_tests::replay_bf16_lamb(const test_support::trace& given) {
  return test_support::replay_lamb<backend>(given);
}
double device_tests::replay_bf16_slamb(const test_support::trace& given) {
  return test_support::detail::replay_slamb_form<backend, slamb::rescaling::product>(given);
}
double device_tests::replay_bf16_one_bit_lamb(const test_support::trace& given) {
  return test_support::replay_one_bit_lamb<backend>(given);
}
