// Recipes shared by the tests and slamb_bench_gpu that exchange differences of parameters. In a source of their own, so that
// processors compile in parallel.
#include "../../bench/gpu/stepper_of.cuh"
#include "adapter.hpp"

namespace {

template <class... Others>
using slamb_by_differences = slamb::slamb_by_differences<slamb::chain<slamb::random_k<>, slamb::int8>, Others...>;

}  // namespace

std::unique_ptr<device_tests::optimizer> device_tests::slamb_by_differences_on_device(ingredients from) {
  return on_device<slamb_by_differences<slamb::cuda_backend>>(std::move(from));
}

std::unique_ptr<bench::stepper> bench::slamb_by_differences_stepper(rank_parts from) {
  return stepper_on_device<slamb_by_differences<slamb::cuda_thread_communicator, timed_backend>>(std::move(from));
}
