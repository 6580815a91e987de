// Optimizers on the device that store or send numbers in fewer bits.
#include "../support/replay.hpp"
#include "adapter.hpp"
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

std::unique_ptr<device_tests::optimizer> device_tests::lamb_in_eight_bits_on_device(ingredients from) {
  return on_device<lamb_in_eight_bits<device_ranks, slamb::cuda_backend>>(std::move(from));
}
std::unique_ptr<device_tests::optimizer> device_tests::one_bit_adam_from_bf16_on_device(ingredients from) {
  return on_device<one_bit_adam_from_bf16<device_ranks, slamb::cuda_backend>>(std::move(from));
}
