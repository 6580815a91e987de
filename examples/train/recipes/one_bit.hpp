// 1-bit Adam and 1-bit LAMB with every quantizer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <slamb/one_bit.hpp>

#include "compressors.hpp"
#include "recipe.hpp"

namespace train {

/// A dense warm-up of a number of steps. With a threshold it ends sooner if the variance is stable enough and the learning rate
/// has warmed up.
inline slamb::automatic_warm_up make_warm_up(const settings& chosen) {
  const std::uint64_t steps = chosen.one_bit_warmup_steps();
  return {.threshold = chosen.one_bit_threshold.value_or(1.0),
          .least_steps = chosen.one_bit_threshold ? std::min(chosen.warmup_steps(), steps) : steps,
          .interval = std::max<std::uint64_t>(1, chosen.steps / 10),
          .most_steps = steps};
}

template <class TrustRatio, auto MakeCompressor>
optimizer_maker make_one_bit(const settings& chosen, std::uint64_t seed) {
  using optimizer = slamb::one_bit_adam<compressor_made_by<MakeCompressor>, TrustRatio, slamb::automatic_warm_up,
                                        rank_communicator, rank_backend>;
  return maker_of<optimizer>({.epsilon = chosen.one_bit_epsilon.value_or(typename optimizer::options_type().epsilon),
                              .weight_decay = chosen.weight_decay,
                              .update_bound = chosen.bound_of_updates(),
                              .warm_up = make_warm_up(chosen),
                              .compressor = MakeCompressor(chosen, seed)},
                             seed);
}

/// The combinations of a recipe.
template <class TrustRatio>
constexpr std::array<combination, 7> one_bit_combinations() {
  return {{{"sign", make_one_bit<TrustRatio, make_zero_aware_sign>},
           {"sign-per-tensor", make_one_bit<TrustRatio, make_zero_aware_sign_per_tensor>},
           {"int8", make_one_bit<TrustRatio, make_int8>},
           {"int4", make_one_bit<TrustRatio, make_int4>},
           {"natural", make_one_bit<TrustRatio, make_natural>},
           {"bf16", make_one_bit<TrustRatio, make_bf16>},
           {"fp16", make_one_bit<TrustRatio, make_fp16>}}};
}

}  // namespace train
