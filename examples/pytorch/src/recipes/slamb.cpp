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
  if constexpr (requires { o.parameter_sync.quantizer.seed; }) s.take("seed", o.parameter_sync.quantizer.seed);
  if constexpr (requires { o.parameter_sync.mean_quantizer.seed; })
    s.take("seed", o.parameter_sync.mean_quantizer.seed);
}

/// How ranks keep their parameters together.
enum class kept_by { average, four_levels, int4, sign };

kept_by take_parameter_sync(settings& s) {
  kept_by sync = kept_by::average;
  s.take_one_of("parameter_sync", sync,
                {{"average", kept_by::average},
                 {"four_levels", kept_by::four_levels},
                 {"int4", kept_by::int4},
                 {"sign", kept_by::sign}});
  return sync;
}

/// True for the ratio of the mean step, which differences have by default.
bool take_trust_ratio(settings& s, kept_by sync) {
  bool of_mean_step = sync != kept_by::average;
  s.take_one_of("trust_ratio", of_mean_step, {{"rescaled", false}, {"mean_step", true}});
  return of_mean_step;
}

template <class Compressor, class Moments = slamb::precision::float_moments>
slamb::optimizer make_slamb(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                            const machine& m) {
  using optimizer = slamb::slamb<rank_communicator, Compressor, slamb::rescaled_trust_ratio<>, backend<Moments>>;
  const kept_by sync = take_parameter_sync(s);
  if (sync != kept_by::average || take_trust_ratio(s, sync))
    throw std::invalid_argument(
        "slamb: a parameter_sync other than 'average', and trust_ratio = 'mean_step', need compressor = 'random_k', "
        "'random_k+int8' or 'random_k+int4', and moments = 'float32'");
  return make<optimizer, read_slamb_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
}

/// Also with parameters that are kept together by differences, and with the ratio of the mean step.
template <class Compressor>
slamb::optimizer make_any_slamb(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                                const machine& m) {
  using rescaled = slamb::rescaled_trust_ratio<>;
  using mean_step = slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>;
  using slamb::sync::quantized_difference, slamb::sync::whole_average;
  const kept_by sync = take_parameter_sync(s);
  const bool of_mean_step = take_trust_ratio(s, sync);
  const auto make_with = [&]<class TrustRatio, class ParameterSync>() {
    using optimizer = slamb::slamb<Compressor, TrustRatio, ParameterSync, rank_communicator,
                                   backend<slamb::precision::float_moments>>;
    return make<optimizer, read_slamb_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
  };
  if (of_mean_step != (sync != kept_by::average) && sync != kept_by::four_levels)
    throw std::invalid_argument(
        of_mean_step ? "slamb: trust_ratio = 'mean_step' needs parameter_sync = 'four_levels', 'int4' or 'sign'"
                     : "slamb: trust_ratio = 'rescaled' needs parameter_sync = 'average' or 'four_levels'");
  switch (sync) {
    case kept_by::four_levels:
      return of_mean_step ? make_with.template operator()<mean_step, quantized_difference<>>()
                          : make_with.template operator()<rescaled, quantized_difference<>>();
    case kept_by::int4:
      return make_with.template operator()<mean_step, quantized_difference<slamb::int4>>();
    case kept_by::sign:
      return make_with.template
      operator()<mean_step, quantized_difference<slamb::basic_sign<slamb::segment_scale::l1>, slamb::four_levels>>();
    case kept_by::average:
      break;
  }
  return make_with.template operator()<rescaled, whole_average>();
}

}  // namespace

std::span<const combination> slamb_combinations() {
  using slamb::precision::bfloat16_momentum, slamb::precision::eight_bit_moments;
  static constexpr std::array<combination, 7> all{
      {{"random_k", "float32", make_any_slamb<slamb::random_k<>>},
       {"random_k", "bf16-momentum", make_slamb<slamb::random_k<>, bfloat16_momentum>},
       {"random_k", "8-bit", make_slamb<slamb::random_k<>, eight_bit_moments>},
       {"top_k", "float32", make_slamb<slamb::top_k>},
       {"random_k+int8", "float32", make_any_slamb<random_k_int8>},
       {"random_k+int4", "float32", make_any_slamb<random_k_int4>},
       {"random_k+sign", "float32", make_slamb<random_k_sign>}}};
  return all;
}

}  // namespace binding
