// Recipes shared by the tests and slamb_bench_gpu that take nvcc long to compile. Most others are in timed_recipes.cu, so that
// processors compile in parallel.
#include "../../bench/gpu/stepper_of.cuh"
#include "../support/replay.hpp"
#include "adapter.hpp"
#include "replay_memory.cuh"

namespace {

using ranks = slamb::cuda_thread_communicator;
using random_bytes = slamb::chain<slamb::random_k<>, slamb::int8>;

template <class Compressor, class... Others>
using slamb_with = slamb::slamb<Compressor, slamb::rescaled_trust_ratio<>, Others...>;

}  // namespace

std::unique_ptr<device_tests::optimizer> device_tests::slamb_int8_on_device(ingredients from) {
  return on_device<slamb_with<random_bytes, slamb::cuda_backend>>(std::move(from));
}

std::unique_ptr<bench::stepper> bench::slamb_int8_stepper(rank_parts from) {
  return stepper_on_device<slamb_with<random_bytes, ranks, timed_backend>>(std::move(from));
}

std::unique_ptr<device_tests::optimizer> device_tests::slamb_top_k_on_device(ingredients from) {
  return on_device<slamb_with<slamb::top_k, slamb::cuda_backend>>(std::move(from));
}

std::unique_ptr<bench::stepper> bench::slamb_top_k_stepper(rank_parts from) {
  return stepper_on_device<slamb_with<slamb::top_k, ranks, timed_backend>>(std::move(from));
}

std::unique_ptr<device_tests::optimizer> device_tests::zero_one_adam_on_device(ingredients from) {
  return on_device<slamb::zero_one_adam<slamb::sign, slamb::cuda_backend>>(std::move(from));
}

double device_tests::replay_zero_one_adam(const test_support::trace& given) {
  return test_support::replay_zero_one_adam<slamb::cuda_backend>(given);
}

std::unique_ptr<bench::stepper> bench::zero_one_adam_stepper(rank_parts from) {
  return stepper_on_device<slamb::zero_one_adam<slamb::sign, timed_backend>>(std::move(from));
}
