// AdamW and LAMB with every compressor of the gradient. A chain with signs is none: its second phase keeps no error, and signs are
// biased, so a part of the gradient would be lost for good.
#pragma once

#include <array>
#include <slamb/compressed_lamb.hpp>

#include "read.hpp"

namespace binding {

template <class Options>
void read_gradient_options(Options& o, settings& s) {
  if constexpr (requires { o.trust_ratio.upper; }) {
    s.take("trust_ratio_lower", o.trust_ratio.lower);
    s.take("trust_ratio_upper", o.trust_ratio.upper);
    s.take("adapt_without_weight_decay", o.trust_ratio.adapt_without_weight_decay);
  }
}

template <class TrustRatio, class Compressor, class Moments>
slamb::optimizer make_gradient(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                               const machine& m) {
  using optimizer = slamb::lamb<Compressor, TrustRatio, rank_communicator, backend<Moments>>;
  return make<optimizer, read_gradient_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
}

template <class TrustRatio>
constexpr auto gradient_combinations() {
  using slamb::precision::bfloat16_momentum, slamb::precision::eight_bit_moments, slamb::precision::float_moments;
  return std::array<combination, 14>{
      {{"none", "float32", make_gradient<TrustRatio, slamb::no_compressor, float_moments>},
       {"none", "bf16-momentum", make_gradient<TrustRatio, slamb::no_compressor, bfloat16_momentum>},
       {"none", "8-bit", make_gradient<TrustRatio, slamb::no_compressor, eight_bit_moments>},
       {"sign", "float32", make_gradient<TrustRatio, slamb::sign, float_moments>},
       {"four_levels", "float32", make_gradient<TrustRatio, slamb::four_levels, float_moments>},
       {"int8", "float32", make_gradient<TrustRatio, slamb::int8, float_moments>},
       {"int4", "float32", make_gradient<TrustRatio, slamb::int4, float_moments>},
       {"natural", "float32", make_gradient<TrustRatio, slamb::natural, float_moments>},
       {"bf16", "float32", make_gradient<TrustRatio, slamb::bf16, float_moments>},
       {"fp16", "float32", make_gradient<TrustRatio, slamb::fp16, float_moments>},
       {"random_k", "float32", make_gradient<TrustRatio, slamb::random_k<>, float_moments>},
       {"top_k", "float32", make_gradient<TrustRatio, slamb::top_k, float_moments>},
       {"random_k+int8", "float32", make_gradient<TrustRatio, random_k_int8, float_moments>},
       {"random_k+int4", "float32", make_gradient<TrustRatio, random_k_int4, float_moments>}}};
}

}  // namespace binding
