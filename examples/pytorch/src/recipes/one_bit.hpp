// 1-bit Adam and 1-bit LAMB with every quantizer.
#pragma once

#include <array>
#include <cstdint>
#include <slamb/one_bit.hpp>

#include "read.hpp"

namespace binding {

/// Reads the end of the warm-up: a number of steps, or, with a threshold, when the variance is stable.
inline void read_warm_up(slamb::automatic_warm_up& w, settings& s) {
  std::uint64_t steps = 1000;
  s.take("warm_up_steps", steps);
  double threshold = 0.0;
  s.take("warm_up_threshold", threshold);
  s.take("warm_up_least_steps", w.least_steps);
  s.take("warm_up_interval", w.interval);
  if (threshold == 0.0) {
    w = {.threshold = 1.0, .least_steps = steps, .interval = w.interval, .most_steps = steps};
  } else {
    w.threshold = threshold;
    w.most_steps = steps;
  }
}

/// Signs leave out elements whose variance is 0: those whose gradient has always been 0, as in rows of an embedding that do not
/// occur. A plain sign cannot represent them.
template <class Options>
void read_zero_aware(Options& o, settings& s) {
  if constexpr (requires { o.compressor.zero_aware; }) {
    o.compressor.zero_aware = true;
    s.take("zero_aware", o.compressor.zero_aware);
  }
}

template <class Options>
void read_one_bit_options(Options& o, settings& s) {
  read_zero_aware(o, s);
  read_warm_up(o.warm_up, s);
  if constexpr (requires { o.trust_ratio.factor_change; }) {
    s.take("trust_ratio_lower", o.trust_ratio.lower);
    s.take("trust_ratio_upper", o.trust_ratio.upper);
    s.take("trust_ratio_average", o.trust_ratio.average);
    s.take("trust_ratio_factor_lower", o.trust_ratio.factor_lower);
    s.take("trust_ratio_factor_upper", o.trust_ratio.factor_upper);
    s.take("trust_ratio_factor_change", o.trust_ratio.factor_change);
  }
}

template <class TrustRatio, class Compressor>
slamb::optimizer make_one_bit(std::span<const slamb::parameter> tensors, settings& s, rank_communicator ranks,
                              const machine& m) {
  using optimizer = slamb::one_bit_adam<Compressor, TrustRatio, slamb::automatic_warm_up, rank_communicator, backend<>>;
  return make<optimizer, read_one_bit_options<typename optimizer::options_type>>(tensors, s, std::move(ranks), m);
}

template <class TrustRatio>
constexpr auto one_bit_combinations() {
  return std::array<combination, 6>{{{"sign", "float32", make_one_bit<TrustRatio, slamb::sign>},
                                     {"int8", "float32", make_one_bit<TrustRatio, slamb::int8>},
                                     {"int4", "float32", make_one_bit<TrustRatio, slamb::int4>},
                                     {"natural", "float32", make_one_bit<TrustRatio, slamb::natural>},
                                     {"bf16", "float32", make_one_bit<TrustRatio, slamb::bf16>},
                                     {"fp16", "float32", make_one_bit<TrustRatio, slamb::fp16>}}};
}

}  // namespace binding
