// Checks a recipe's options, and lists those that must be equal on all ranks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>

#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/ranks/agreement.hpp"
#include "slamb/detail/state/saved_state.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"
#include "slamb/optimizer/detail/update_bound.hpp"
#include "slamb/optimizer/rank_options.hpp"

namespace slamb::detail {

/// Calls `validate()` of a policy that has one. It throws std::invalid_argument.
template <class Policy>
void validate_policy(const Policy& policy) {
  if constexpr (requires { policy.validate(); }) policy.validate();
}

/// Adds the members of a quantizer on which messages depend, whether or not it describes them, and those of the quantizers in a
/// chain or a ParameterSync.
template <class Policy>
void describe_quantizers(const Policy& policy, consistency_check& fields) {
  if constexpr (quantizer<Policy>) {
    if constexpr (requires { policy.block; })
      fields.add_word("the block of a quantizer", static_cast<std::uint64_t>(policy.block));
    if constexpr (requires { policy.scales; })
      fields.add_word("the scales of a quantizer (0: fused, 1: per tensor)",
                      policy.scales == scale_sharing::per_tensor ? 1 : 0);
    if constexpr (capability::stochastic_quantizer<Policy> && requires { policy.seed; })
      fields.add_word("the seed of a quantizer", static_cast<std::uint64_t>(policy.seed));
    if constexpr (requires { policy.zero_aware; })
      fields.add_word("zero_aware of a quantizer", policy.zero_aware ? 1 : 0);
  }
  if constexpr (requires { policy.quantizer; }) describe_quantizers(policy.quantizer, fields);
  if constexpr (requires { policy.mean_quantizer; }) describe_quantizers(policy.mean_quantizer, fields);
}

/// Calls `describe(fields)` of a policy that has one. It lists the options that must be equal on all ranks.
template <class Policy>
void describe_policy(const Policy& policy, consistency_check& fields) {
  if constexpr (requires { policy.describe(fields); }) policy.describe(fields);
  describe_quantizers(policy, fields);
}

/// Checks the members below that a recipe's options have.
/// @throws std::invalid_argument that names the value out of range
template <class Options>
void validate_settings(const Options& o) {
  if constexpr (requires { o.beta1; }) require_decay_rate("beta1", o.beta1);
  if constexpr (requires { o.beta2; }) require_decay_rate("beta2", o.beta2);
  if constexpr (requires { o.epsilon; }) require_positive("epsilon", o.epsilon);
  require_non_negative("weight_decay", o.weight_decay);
  if constexpr (requires { o.max_gradient_norm; })
    require_in(o.max_gradient_norm > 0.0, "max_gradient_norm", o.max_gradient_norm, "> 0 (inf: off)");
  if constexpr (requires { o.update_bound; }) require_update_bound(o.update_bound);
  require_in(o.ranks.bucket_bytes >= 1, "bucket_bytes", static_cast<double>(o.ranks.bucket_bytes), ">= 1");
  validate_policy(o.compressor);
  if constexpr (requires { o.dense_compressor; }) validate_policy(o.dense_compressor);
  if constexpr (requires { o.error_feedback; }) validate_policy(o.error_feedback);
  if constexpr (requires { o.trust_ratio; }) validate_policy(o.trust_ratio);
}

/// The options that must be equal on all ranks.
/// @param recipe  its name
template <class Options>
consistency_check consistency_of(std::string_view recipe, const Options& o, std::size_t tensors) {
  std::string name(recipe);
  name += ' ';
  name += typeid(Options).name();
  consistency_check all(name, tensors);
  if constexpr (requires { o.beta1; }) all.add("beta1", o.beta1);
  if constexpr (requires { o.beta2; }) all.add("beta2", o.beta2);
  if constexpr (requires { o.epsilon; }) all.add("epsilon", o.epsilon);
  all.add("bias_correction", corrects_bias(o) ? 1.0 : 0.0);
  if constexpr (requires { o.max_gradient_norm; }) all.add("max_gradient_norm", o.max_gradient_norm);
  if constexpr (requires { o.clip_locally; }) all.add("clip_locally", o.clip_locally ? 1.0 : 0.0);
  if constexpr (requires { o.update_bound; }) all.add("update_bound", o.update_bound);
  all.add_word("bucket_bytes", o.ranks.bucket_bytes);
  all.add_word("compare_every", o.ranks.compare_every);
  describe_policy(o.compressor, all);
  if constexpr (requires { o.dense_compressor; }) describe_policy(o.dense_compressor, all);
  if constexpr (requires { o.error_feedback; }) describe_policy(o.error_feedback, all);
  if constexpr (requires { o.trust_ratio; }) describe_policy(o.trust_ratio, all);
  return all;
}

/// Adds the properties of tensors that must be equal on all ranks. The list of names is the same for every tensor, because ranks
/// first compare the names.
void describe_tensors(const layout& tensors, consistency_check& fields, bool in_shards);

}  // namespace slamb::detail
