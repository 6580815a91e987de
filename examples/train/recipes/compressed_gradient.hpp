// LAMB and AdamW with a compressed gradient.
#pragma once

#include <array>
#include <cstdint>
#include <slamb/compressed_lamb.hpp>

#include "compressors.hpp"
#include "recipe.hpp"

namespace train {

template <class TrustRatio, auto MakeCompressor>
optimizer_maker make_with_compressed_gradient(const settings& chosen, std::uint64_t seed) {
  using compressor = compressor_made_by<MakeCompressor>;
  using optimizer = slamb::lamb<compressor, TrustRatio, rank_communicator, rank_backend>;
  return maker_of<optimizer>({.weight_decay = chosen.weight_decay, .compressor = MakeCompressor(chosen, seed)}, seed);
}

/// LAMB or AdamW with a dense gradient.
template <class Optimizer>
optimizer_maker make_with_dense_gradient(const settings& chosen, std::uint64_t seed) {
  return maker_of<Optimizer>({.weight_decay = chosen.weight_decay}, seed);
}

/// The combinations of a recipe. `Optimizer` is the recipe with no_compressor.
template <class Optimizer, class TrustRatio>
constexpr std::array<combination, 13> gradient_combinations() {
  return {{{"none", make_with_dense_gradient<Optimizer>},
           {"sign", make_with_compressed_gradient<TrustRatio, make_sign>},
           {"sign-per-tensor", make_with_compressed_gradient<TrustRatio, make_sign_per_tensor>},
           {"int8", make_with_compressed_gradient<TrustRatio, make_int8>},
           {"int4", make_with_compressed_gradient<TrustRatio, make_int4>},
           {"natural", make_with_compressed_gradient<TrustRatio, make_natural>},
           {"bf16", make_with_compressed_gradient<TrustRatio, make_bf16>},
           {"fp16", make_with_compressed_gradient<TrustRatio, make_fp16>},
           {"random_k", make_with_compressed_gradient<TrustRatio, make_random_k>},
           {"top_k", make_with_compressed_gradient<TrustRatio, make_top_k>},
           {"random_k+int8", make_with_compressed_gradient<TrustRatio, make_chain<make_random_k, make_int8>>},
           {"random_k+int4", make_with_compressed_gradient<TrustRatio, make_chain<make_random_k, make_int4>>},
           {"random_k+sign", make_with_compressed_gradient<TrustRatio, make_chain<make_random_k, make_sign>>}}};
}

}  // namespace train
