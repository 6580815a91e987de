// Checks and comparisons of settings, for recipes that take Adam's and any policies.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <typeinfo>

#include "slamb/core/agreement.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/element.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// Lets a policy check its hyper-parameters, if it has any: `validate()` throws std::invalid_argument.
template <class Policy>
void validate_policy(const Policy& policy) {
  if constexpr (requires { policy.validate(); }) policy.validate();
}

/// Lets a policy name the hyper-parameters that must be the same on all ranks, if it has any: `describe(facts)`.
template <class Policy>
void describe_policy(const Policy& policy, agreement& facts) {
  if constexpr (requires { policy.describe(facts); }) policy.describe(facts);
}

/// Checks Adam's hyper-parameters and the policies in a recipe's options.
/// @throws std::invalid_argument naming what is out of range
template <class Options>
void validate_settings(const Options& o) {
  detail::require_decay_rate("beta1", o.beta1);
  detail::require_decay_rate("beta2", o.beta2);
  detail::require_positive("epsilon", o.epsilon);
  detail::require_non_negative("weight_decay", o.weight_decay);
  validate_policy(o.compressor);
  validate_policy(o.error_feedback);
  validate_policy(o.trust_ratio);
}

/// What must be the same on all ranks of Adam's hyper-parameters and the policies.
template <class Options>
agreement agreement_of(std::string_view recipe, const Options& o, std::size_t tensors) {
  agreement all(std::string(recipe) + typeid(Options).name(), tensors);
  all.add("beta1", o.beta1);
  all.add("beta2", o.beta2);
  all.add("epsilon", o.epsilon);
  all.add("bias_correction", o.bias_correction ? 1.0 : 0.0);
  describe_policy(o.compressor, all);
  describe_policy(o.error_feedback, all);
  describe_policy(o.trust_ratio, all);
  return all;
}

/// The scalars of step t.
///
/// @param t  1, 2, …
/// @param gradient_scale  multiplies what is read as the gradient
template <trust_ratio TrustRatio, class Options>
adam_scalars scalars_at(std::uint64_t t, const Options& o, double gradient_scale) {
  const auto steps = static_cast<double>(t);
  const double momentum_correction = o.bias_correction ? 1.0 / (1.0 - std::pow(o.beta1, steps)) : 1.0;
  const double deviation_correction = o.bias_correction ? 1.0 / std::sqrt(1.0 - std::pow(o.beta2, steps)) : 1.0;
  const double epsilon = has_uncorrected_epsilon<TrustRatio> ? o.epsilon * deviation_correction : o.epsilon;
  return {.one_minus_beta1 = static_cast<float>(1.0 - o.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - o.beta2),
          .momentum_correction = static_cast<float>(momentum_correction),
          .deviation_correction = static_cast<float>(deviation_correction),
          .epsilon = static_cast<float>(epsilon),
          .gradient_scale = static_cast<float>(gradient_scale)};
}

}  // namespace slamb
