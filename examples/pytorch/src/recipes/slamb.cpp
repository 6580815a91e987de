// SLAMB with every sparsifier and chain.
#include <array>

#include "read.hpp"

namespace binding {

namespace {

template <class Options>
void read_slamb_options(Options& o, settings& s) {
  s.take("beta3", o.beta3);
  s.take("local_steps", o.local_steps);
  s.take("dense_below", o.dense_below);
  s.take("trust_ratio_lower", o.trust_ratio.lower);
  s.take("trust_ratio_upper", o.trust_ratio.upper);
}

template <class Compressor, class Moments = slamb::precision::float_moments>
slamb::optimizer make_slamb(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                            const machine& m) {
  using optimizer = slamb::slamb<rank_communicator, Compressor, slamb::rescaled_trust_ratio<>, backend<Moments>>;
  return make<optimizer, read_slamb_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
}

}  // namespace

std::span<const combination> slamb_combinations() {
  using slamb::precision::bfloat16_momentum, slamb::precision::eight_bit_moments;
#if defined(SLAMB_BINDING_CUDA)
  static constexpr std::array<combination, 2> all{{{"random_k", "float32", make_slamb<slamb::random_k<>>},
                                                   {"random_k+int8", "float32", make_slamb<random_k_int8>}}};
#else
  static constexpr std::array<combination, 7> all{
      {{"random_k", "float32", make_slamb<slamb::random_k<>>},
       {"random_k", "bf16-momentum", make_slamb<slamb::random_k<>, bfloat16_momentum>},
       {"random_k", "8-bit", make_slamb<slamb::random_k<>, eight_bit_moments>},
       {"top_k", "float32", make_slamb<slamb::top_k>},
       {"random_k+int8", "float32", make_slamb<random_k_int8>},
       {"random_k+int4", "float32", make_slamb<random_k_int4>},
       {"random_k+sign", "float32", make_slamb<random_k_sign>}}};
#endif
  return all;
}

}  // namespace binding
