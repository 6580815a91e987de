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
  if constexpr (requires { o.parameter_sync.mean_quantizer.seed; })
    s.take("seed", o.parameter_sync.mean_quantizer.seed);
}

template <class Compressor, class Moments = slamb::precision::float_moments>
slamb::optimizer make_slamb(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                            const machine& m) {
  using optimizer = slamb::slamb<rank_communicator, Compressor, slamb::rescaled_trust_ratio<>, backend<Moments>>;
  return make<optimizer, read_slamb_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
}

/// Also with parameters that are kept together by signs of their differences, and with the ratio of the mean step.
template <class Compressor>
slamb::optimizer make_any_slamb(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                                const machine& m) {
  bool by_signs = false, of_mean_step = false;
  s.take_one_of("parameter_sync", by_signs, {{"average", false}, {"signs", true}});
  s.take_one_of("trust_ratio", of_mean_step, {{"rescaled", false}, {"mean_step", true}});
  const auto make_with = [&]<class TrustRatio, class ParameterSync>() {
    using optimizer = slamb::basic_slamb<Compressor, slamb::local_momentum, TrustRatio, rank_communicator,
                                         backend<slamb::precision::float_moments>, ParameterSync>;
    return make<optimizer, read_slamb_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
  };
  using rescaled = slamb::rescaled_trust_ratio<>;
  using differences = slamb::sync::quantized_difference<>;
  if (!by_signs) {
    if (of_mean_step) throw std::invalid_argument("slamb: trust_ratio = 'mean_step' needs parameter_sync = 'signs'");
    return make_with.template operator()<rescaled, slamb::sync::whole_average>();
  }
  return of_mean_step
             ? make_with.template operator()<slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>, differences>()
             : make_with.template operator()<rescaled, differences>();
}

}  // namespace

std::span<const combination> slamb_combinations() {
  using slamb::precision::bfloat16_momentum, slamb::precision::eight_bit_moments;
#if defined(SLAMB_BINDING_CUDA)
  static constexpr std::array<combination, 2> all{{{"random_k", "float32", make_slamb<slamb::random_k<>>},
                                                   {"random_k+int8", "float32", make_slamb<random_k_int8>}}};
#else
  static constexpr std::array<combination, 7> all{
      {{"random_k", "float32", make_any_slamb<slamb::random_k<>>},
       {"random_k", "bf16-momentum", make_slamb<slamb::random_k<>, bfloat16_momentum>},
       {"random_k", "8-bit", make_slamb<slamb::random_k<>, eight_bit_moments>},
       {"top_k", "float32", make_slamb<slamb::top_k>},
       {"random_k+int8", "float32", make_any_slamb<random_k_int8>},
       {"random_k+int4", "float32", make_any_slamb<random_k_int4>},
       {"random_k+sign", "float32", make_slamb<random_k_sign>}}};
#endif
  return all;
}

}  // namespace binding
