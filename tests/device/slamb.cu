#include "../../bench/gpu/stepper_of.cuh"
#include "adapter.hpp"

std::unique_ptr<device_tests::optimizer> device_tests::slamb_on_device(ingredients from) {
  return on_device<slamb::slamb<slamb::cuda_thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>,
                                slamb::cuda_backend>>(std::move(from));
}

std::unique_ptr<bench::stepper> bench::slamb_stepper(rank_parts from) {
  return stepper_on_device<
      slamb::slamb<slamb::cuda_thread_communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, timed_backend>>(
      std::move(from));
}
