// Names the Compressor of dense gradients, in optimizers that compress something else by another Compressor.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb {

/// As a template argument of `one_bit_adam`, `one_bit_lamb` and `zero_one_adam`: their dense gradients are exchanged by
/// `Compressor`, which is their DenseCompressor. `one_bit_adam<dense_in<bf16>>` sends them in sixteen bits.
///
/// @tparam Compressor  no_compressor, or a quantizer that models capability::has_no_scale
template <class Compressor>
struct dense_in {
  static_assert(
      requires { requires Compressor::selects_all; } || capability::has_no_scale<Compressor>,
      "slamb: the Compressor of dense_in must be no_compressor or a quantizer without scales, such as bf16 or fp16");
  using type = Compressor;
};

}  // namespace slamb
