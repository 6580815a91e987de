// Makes the calls of a rank from settings.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include <slamb/compressed_lamb.hpp>
#include <slamb/one_bit.hpp>

#include "one_bit_calls.hpp"
#include "rank_calls.hpp"
#include "settings.hpp"

namespace slamb_jax {

/// @throws std::invalid_argument that names the option out of range
template <class Options>
Options options_of(const settings& s) {
  Options o;
  o.beta1 = s.beta1;
  o.beta2 = s.beta2;
  o.epsilon = s.epsilon;
  o.weight_decay = 0.0;  // tensors have their own
  o.max_gradient_norm = s.max_gradient_norm;
  if constexpr (requires { o.update_bound; }) o.update_bound = s.update_bound;
  if constexpr (requires { o.warm_up.steps; }) {
    o.warm_up.steps = s.warm_up_steps;
    o.warm_up.validate();
  }
  if constexpr (requires { o.compressor.seed; }) o.compressor.seed = s.seed;
  core::validate_settings(o);
  return o;
}

template <class TrustRatio>
std::unique_ptr<rank_calls> make_gradient_calls(const settings& s, int rank) {
  const auto with = [&]<class Quantizer>(Quantizer /*type*/) -> std::unique_ptr<rank_calls> {
    using calls = gradient_calls<Quantizer, TrustRatio>;
    return std::make_unique<calls>(s, options_of<typename calls::options_type>(s), rank);
  };
  if (s.compressor == "none") {
    using calls = dense_calls<TrustRatio>;
    return std::make_unique<calls>(s, options_of<typename calls::options_type>(s));
  }
  if (s.compressor == "sign") return with(slamb::sign());
  if (s.compressor == "int8") return with(slamb::int8());
  if (s.compressor == "int4") return with(slamb::int4());
  throw std::invalid_argument("slamb: there is no compressor '" + s.compressor + "'");
}

template <class TrustRatio>
std::unique_ptr<rank_calls> make_one_bit_calls(const settings& s, int rank) {
  using calls = one_bit_calls<TrustRatio>;
  return std::make_unique<calls>(s, options_of<typename calls::options_type>(s), rank);
}

/// @throws std::invalid_argument
inline std::unique_ptr<rank_calls> make_calls(const settings& s, int rank) {
  if (s.recipe == "adamw") return make_gradient_calls<slamb::unit_trust_ratio>(s, rank);
  if (s.recipe == "lamb") return make_gradient_calls<slamb::layerwise_trust_ratio>(s, rank);
  if (s.recipe == "one_bit_adam") return make_one_bit_calls<slamb::unit_trust_ratio>(s, rank);
  if (s.recipe == "one_bit_lamb") return make_one_bit_calls<slamb::frozen_trust_ratio>(s, rank);
  throw std::invalid_argument("slamb: there is no optimizer '" + s.recipe + "'");
}

}  // namespace slamb_jax
