#include "optimizers.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <slamb/slamb.hpp>
#include <utility>

#include "device_optimizer.cuh"

namespace cuda_example {

namespace {

using communicator = slamb::cuda_thread_communicator;
using backend = slamb::cuda_backend;

template <class Optimizer>
train::optimizer_maker maker_of(const typename Optimizer::options_type& options) {
  return [options](std::span<const slamb::parameter> parameters, train::rank_communicator ranks) {
    return std::make_unique<device_optimizer<Optimizer>>(parameters, options,
                                                         std::move(ranks.get<slamb::thread_communicator>()));
  };
}

train::optimizer_maker make_lamb(const train::settings& chosen) {
  return maker_of<slamb::lamb<communicator, backend>>({.weight_decay = chosen.weight_decay});
}

train::optimizer_maker make_slamb(const train::settings& chosen) {
  return maker_of<slamb::slamb<communicator, slamb::random_k<>, slamb::rescaled_trust_ratio<>, backend>>(
      {.beta3 = chosen.beta3,
       .weight_decay = chosen.weight_decay,
       .local_steps = static_cast<std::int64_t>(chosen.local_steps),
       .compressor = {.k = chosen.k}});
}

// The corners of no image are inked: the gradients of their weights are always 0, which a plain sign cannot say.
train::optimizer_maker make_one_bit_lamb(const train::settings& chosen) {
  return maker_of<slamb::one_bit_lamb<communicator, slamb::sign, backend>>(
      {.epsilon = chosen.one_bit_epsilon,
       .weight_decay = chosen.weight_decay,
       .warm_up = {.steps = chosen.one_bit_warmup_steps()},
       .compressor = {.zero_aware = true}});
}

constexpr std::array<device_recipe, 3> all{
    {{"lamb", 0.01, make_lamb}, {"slamb", 0.02, make_slamb}, {"one_bit_lamb", 0.02, make_one_bit_lamb}}};

}  // namespace

std::span<const device_recipe> device_recipes() { return all; }

}  // namespace cuda_example
