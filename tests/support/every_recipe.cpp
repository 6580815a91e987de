// The recipes of every_recipe.hpp.
#include "support/every_recipe.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace test_support {

namespace {

std::vector<expected_phase> warmed_up(std::uint64_t steps) { return {{"warm-up", 1}, {"compressed", steps + 1}}; }

using communicator = slamb::any_communicator<>;
using slamb::layerwise_trust_ratio;

template <class Compressor, class ErrorFeedback>
using lamb = slamb::lamb<Compressor, ErrorFeedback, communicator>;
template <class Compressor>
using slamb_with = slamb::slamb<communicator, Compressor>;

using with_differences = slamb::slamb<slamb::rescaled_trust_ratio<>, slamb::sync::quantized_difference<>, communicator>;

using byte_chain = slamb::chain<slamb::random_k<>, slamb::int8>;
using chosen_chain = slamb::chain<slamb::top_k, slamb::int4>;
using drawn = slamb::random_k<slamb::sampling::bernoulli>;
using drawn_chain = slamb::chain<drawn, slamb::natural>;
template <class Compressor, class TrustRatio>
using automatic = slamb::one_bit_adam<Compressor, TrustRatio, slamb::automatic_warm_up, communicator>;
using one_bit_lamb_in_16_bits = slamb::one_bit_lamb<slamb::dense_in<slamb::bf16>, communicator>;
using zero_one_adam_in_16_bits = slamb::zero_one_adam<slamb::dense_in<slamb::fp16>, communicator>;

/// LAMB and AdamW.
std::vector<recipe> recipes_of_lamb() {
  using slamb::residual, slamb::two_sided;
  const std::vector<expected_phase> dense{{"dense", 1}};
  return {recipe_of<slamb::adamw<communicator>>("adamw", {}, always(1), dense),
          recipe_of<slamb::lamb<communicator>>("lamb", {.max_gradient_norm = 1.0}, always(1), dense),
          recipe_of<lamb<slamb::sign, two_sided<>>>("lamb, sign", {}, always(2), dense),
          recipe_of<lamb<slamb::int8, residual<>>>("lamb, int8", {.max_gradient_norm = 1.0}, always(2), dense),
          recipe_of<lamb<slamb::random_k<>, residual<>>>("lamb, random_k", {}, always(1), dense),
          recipe_of<lamb<slamb::top_k, residual<>>>("lamb, top_k", {.compressor = {.k = 0.1}}, always(2), dense),
          recipe_of<lamb<byte_chain, residual<>>>("lamb, random_k and int8", {}, always(2), dense),
          recipe_of<lamb<chosen_chain, residual<>>>("lamb, top_k and int4", {}, always(3), dense),
          recipe_of<slamb::adamw<slamb::sync::partition<>, communicator>>("adamw, partitioned", {}, always(2), dense),
          recipe_of<slamb::lamb<slamb::int8, slamb::sync::partition<slamb::int8>, communicator>>(
              "lamb, partitioned, in codes", {.max_gradient_norm = 1.0}, always(4), dense)};
}

std::vector<recipe> recipes_of_slamb() {
  const auto with = []<class Compressor>(const std::string& name, const Compressor& c, std::uint64_t rounds) {
    return recipe_of<slamb_with<Compressor>>(
        "slamb, " + name, {.local_steps = 1000, .dense_below = 10, .compressor = c}, always(rounds), {{"sparse", 1}});
  };
  return {with("random_k", slamb::random_k<>{}, 1),
          with("bernoulli", drawn{}, 1),
          with("top_k", slamb::top_k{.k = 0.1}, 2),
          with("random_k and int8", byte_chain{}, 2),
          with("bernoulli and natural", drawn_chain{}, 2),
          with("top_k and int4", chosen_chain{.sparsifier = {.k = 0.1}}, 3),
          recipe_of<with_differences>("slamb, random_k, by differences", {.local_steps = 1, .dense_below = 10},
                                      always(3), {{"sparse", 1}})};
}

/// Optimizers with phases.
std::vector<recipe> recipes_with_phases() {
  constexpr auto per_tensor = slamb::scale_sharing::per_tensor;
  using one_bit_lamb = slamb::one_bit_lamb<communicator>;
  return {
      recipe_of<slamb::one_bit_adam<communicator>>("one_bit_adam", {.warm_up = {4}}, after_warm_up(4), warmed_up(4)),
      recipe_of<one_bit_lamb>("one_bit_lamb", {.warm_up = {4}}, after_warm_up(4), warmed_up(4)),
      recipe_of<one_bit_lamb>("one_bit_lamb by tensor", {.warm_up = {4}, .compressor = {.scales = per_tensor}},
                              after_warm_up(4), warmed_up(4)),
      recipe_of<automatic<slamb::int8, slamb::frozen_trust_ratio>>("one_bit_lamb, int8", {.warm_up = {.most_steps = 4}},
                                                                   after_warm_up(4), warmed_up(4)),
      recipe_of<automatic<slamb::sign, slamb::unit_trust_ratio>>(
          "one_bit_adam, automatic", {.warm_up = {.most_steps = 6}}, after_warm_up(6), warmed_up(6)),
      // τ = 2, 3, 4 and 6 refresh the variance; τ = 8, 9, 10, 12 and 16 exchange the local updates.
      recipe_of<slamb::zero_one_adam<communicator>>(
          "zero_one_adam",
          {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}},
          {1, 1, 1, 2, 1, 2, 2, 2, 2, 0, 2, 0, 0, 0, 2}, {{"variance", 1}, {"local steps", 7}}),
      recipe_of<one_bit_lamb_in_16_bits>("one_bit_lamb by tensor, bf16",
                                         {.warm_up = {4}, .compressor = {.scales = per_tensor}}, always(2),
                                         warmed_up(4)),
      recipe_of<zero_one_adam_in_16_bits>(
          "zero_one_adam, fp16",
          {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}},
          {2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 2, 0, 0, 0, 2}, {{"variance", 1}, {"local steps", 7}})};
}

}  // namespace

std::vector<recipe> every_recipe() {
  std::vector<recipe> all = recipes_of_lamb();
  for (recipe& r : recipes_of_slamb()) all.push_back(std::move(r));
  for (recipe& r : recipes_with_phases()) all.push_back(std::move(r));
  return all;
}

}  // namespace test_support
