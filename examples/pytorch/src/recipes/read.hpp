// The backend of the optimizers, and functions that read options and compressors from settings.
#pragma once

#include <slamb/backend/precision.hpp>
#include <slamb/optimizer/moments.hpp>
#include <slamb/slamb.hpp>
#include <string>
#include <utility>

#include "../combination.hpp"

#if defined(SLAMB_BINDING_CUDA)
#include <slamb/cuda.cuh>
#endif

namespace binding {

#if defined(SLAMB_BINDING_CUDA)
using plain_backend = slamb::cuda_backend;
inline plain_backend plain_backend_for(const machine& m) { return {.stream = m.stream}; }
#else
using plain_backend = slamb::host_backend;
inline plain_backend plain_backend_for(const machine& m) { return {.threads = m.threads}; }
#endif

/// The Backend of every optimizer. Parameters of 16 bits with a `parameter::master` are rounded to nearest from that copy, those
/// without by chance. On floats it has the bits of the plain backend.
template <class Moments = slamb::precision::float_moments>
using backend = slamb::precision::mixed<plain_backend, slamb::precision::stochastic_rounding, Moments>;

}  // namespace binding

// Compiled once, in machines.cpp.
extern template class slamb::detail::machine_on<binding::backend<>>;
extern template class slamb::detail::machine_on<binding::backend<slamb::precision::bfloat16_momentum>>;
extern template class slamb::detail::machine_on<binding::backend<slamb::precision::eight_bit_moments>>;

namespace binding {

inline void read_into(slamb::no_compressor& /*c*/, settings& /*s*/) {}
inline void read_into(slamb::sign& c, settings& s) {
  s.take_one_of<slamb::scale_sharing>(
      "scales", c.scales, {{"fused", slamb::scale_sharing::fused}, {"per_tensor", slamb::scale_sharing::per_tensor}});
}
inline void read_into(slamb::four_levels& c, settings& s) { s.take("quantizer_block", c.block); }
template <int Bits>
void read_into(slamb::integer<Bits>& c, settings& s) {
  s.take("quantizer_block", c.block);
  s.take("seed", c.seed);
}
inline void read_into(slamb::natural& c, settings& s) { s.take("seed", c.seed); }
inline void read_into(slamb::bf16& /*c*/, settings& /*s*/) {}
inline void read_into(slamb::fp16& /*c*/, settings& /*s*/) {}
inline void read_into(slamb::random_k<>& c, settings& s) {
  s.take("k", c.k);
  s.take("block", c.block);
  s.take("seed", c.seed);
}
inline void read_into(slamb::top_k& c, settings& s) { s.take("k", c.k); }
template <class Sparsifier, class Quantizer>
void read_into(slamb::chain<Sparsifier, Quantizer>& c, settings& s) {
  read_into(c.sparsifier, s);
  read_into(c.quantizer, s);
}

/// The options that every optimizer has. A tensor's weight decay is given with the tensor.
template <class Options>
void read_common(Options& o, settings& s) {
  s.take("beta1", o.beta1);
  s.take("beta2", o.beta2);
  s.take("epsilon", o.epsilon);
  s.take("max_gradient_norm", o.max_gradient_norm);
  s.take("compare_every", o.ranks.compare_every);
  if constexpr (requires { o.update_bound; }) s.take("update_bound", o.update_bound);
  if constexpr (requires { o.bias_correction; }) s.take("bias_correction", o.bias_correction);
  if constexpr (requires { o.skip_non_finite; }) s.take("skip_non_finite", o.skip_non_finite);
  if constexpr (requires { o.clip_locally; }) s.take("clip_locally", o.clip_locally);
  if constexpr (requires { o.compress_single_rank; }) s.take("compress_single_rank", o.compress_single_rank);
  read_into(o.compressor, s);
}

/// Makes an `Optimizer` with the options that read(options, settings) has read.
template <class Optimizer, auto Read>
slamb::optimizer make(std::span<const slamb::parameter> tensors, settings& given, rank_communicator ranks,
                      const machine& m) {
  typename Optimizer::options_type options;
  read_common(options, given);
  Read(options, given);
  given.require_all_taken();
  return Optimizer(tensors, options, std::move(ranks),
                   typename Optimizer::backend_type{plain_backend_for(m), {.seed = m.seed}});
}

using random_k_int8 = slamb::chain<slamb::random_k<>, slamb::int8>;
using random_k_int4 = slamb::chain<slamb::random_k<>, slamb::int4>;
using random_k_sign = slamb::chain<slamb::random_k<>, slamb::sign>;

}  // namespace binding
