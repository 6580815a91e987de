// 0/1 Adam with every quantizer.
#include <array>
#include <cstdint>
#include <slamb/one_bit.hpp>

#include "compressors.hpp"
#include "recipe.hpp"

namespace train {

namespace {

template <auto MakeCompressor>
optimizer_maker make_zero_one_adam(const settings& chosen, std::uint64_t seed) {
  using optimizer = slamb::zero_one_adam<rank_communicator, compressor_made_by<MakeCompressor>, rank_backend>;
  return maker_of<optimizer>(
      {.epsilon = chosen.one_bit_epsilon.value_or(typename optimizer::options_type().epsilon),
       .weight_decay = chosen.weight_decay,
       .update_bound = chosen.bound_of_updates(),
       .variance_schedule = {.freeze_step = chosen.variance_freeze_step(),
                             .update_scaler = chosen.variance_update_scaler},
       .local_schedule = {.scaler = chosen.local_interval_scaler(), .clipper = chosen.local_step_clipper},
       .compressor = MakeCompressor(chosen, seed)},
      seed);
}

constexpr std::array<combination, 7> all{{{"sign", make_zero_one_adam<make_zero_aware_sign>},
                                          {"sign-per-tensor", make_zero_one_adam<make_zero_aware_sign_per_tensor>},
                                          {"int8", make_zero_one_adam<make_int8>},
                                          {"int4", make_zero_one_adam<make_int4>},
                                          {"natural", make_zero_one_adam<make_natural>},
                                          {"bf16", make_zero_one_adam<make_bf16>},
                                          {"fp16", make_zero_one_adam<make_fp16>}}};

}  // namespace

std::span<const combination> zero_one_adam_combinations() { return all; }

}  // namespace train
