// LAMB, AdamW and SLAMB.
#include <array>
#include <cstdint>

#include "optimizers.hpp"
#include "slamb/compressor/chain.hpp"
#include "slamb/plan/lamb.hpp"
#include "slamb/plan/slamb.hpp"

namespace bench::distributed {

namespace {

template <class Optimizer>
measurement measure_dense(const scene& at, const std::string& name) {
  return measure<Optimizer>(at, name, {}, {.phase = "dense"});
}

// Every H steps hold one mean of the parameters.
template <class Optimizer>
measurement measure_slamb(const scene& at, const std::string& name) {
  typename Optimizer::options_type options;
  if constexpr (requires { options.compressor.sparsifier; })
    options.compressor.sparsifier.k = at.chosen.k;
  else
    options.compressor.k = at.chosen.k;
  options.local_steps = static_cast<std::int64_t>(at.chosen.local_steps);
  return measure<Optimizer>(at, name, options, {.phase = "sparse", .period = at.chosen.local_steps});
}

using slamb_int8 = slamb::slamb<ranks, slamb::chain<slamb::random_k<>, slamb::int8>>;

}  // namespace

std::span<const measured_optimizer> optimizers_of_floats() {
  static constexpr std::array<measured_optimizer, 4> all{{
      {"lamb", measure_dense<slamb::lamb<ranks>>},
      {"adamw", measure_dense<slamb::adamw<ranks>>},
      {"slamb", measure_slamb<slamb::slamb<ranks>>},
      {"slamb+int8", measure_slamb<slamb_int8>},
  }};
  return all;
}

}  // namespace bench::distributed
