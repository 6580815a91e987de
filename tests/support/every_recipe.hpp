// Every optimizer with every kind of exchange that it supports. Schedules are short, so that a few steps cover all phases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/made_optimizer.hpp"

namespace test_support {

/// An expected phase of an optimizer.
struct expected_phase {
  std::string name;
  std::uint64_t first_step;
};

/// An optimizer with its settings, and the expected number of collectives in each of the first steps. The number holds for
/// several ranks and if all tensors are compressed.
struct recipe {
  std::string name;
  optimizer_maker make;               // on ranks of thread_communicator
  std::vector<std::uint64_t> rounds;  // [steps], without SLAMB's averaging of parameters at step 1
  std::vector<expected_phase> phases;
  bool averages_at_first = false;  // true for SLAMB by whole averages: it averages parameters at step 1
  bool equalizes_momenta =
      false;  // true for 1-bit LAMB: it equalizes the momenta of all tensors when compression begins
};

/// True for options of SLAMB whose ParameterSync averages.
template <class Options>
constexpr bool averages_parameters() {
  if constexpr (requires(const Options& o) { o.parameter_sync; })
    return !slamb::capability::sends_differences<decltype(Options::parameter_sync)>;
  else
    return false;
}

template <class Optimizer>
recipe recipe_of(std::string name, const typename Optimizer::options_type& options, std::vector<std::uint64_t> rounds,
                 std::vector<expected_phase> phases) {
  using options_type = typename Optimizer::options_type;
  constexpr bool equalizes = requires(const options_type& o) { o.trust_ratio.factor_change; };
  return {std::move(name),   maker_of<Optimizer>(options),        std::move(rounds),
          std::move(phases), averages_parameters<options_type>(), equalizes};
}

constexpr std::size_t steps_of_recipes = 15;

/// An equal number of collectives in every step.
inline std::vector<std::uint64_t> always(std::uint64_t rounds) {
  return std::vector<std::uint64_t>(steps_of_recipes, rounds);
}

/// Dense gradients for `steps` steps, then codes.
inline std::vector<std::uint64_t> after_warm_up(std::size_t steps) {
  std::vector<std::uint64_t> rounds = always(2);
  for (std::size_t t = 0; t < steps; ++t) rounds[t] = 1;
  return rounds;
}

inline std::vector<expected_phase> warmed_up(std::uint64_t steps) {
  return {{"warm-up", 1}, {"compressed", steps + 1}};
}

namespace detail {

using communicator = slamb::thread_communicator;
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

}  // namespace detail

/// LAMB and AdamW.
inline std::vector<recipe> recipes_of_lamb() {
  using detail::communicator, detail::lamb;
  using slamb::residual, slamb::two_sided;
  const std::vector<expected_phase> dense{{"dense", 1}};
  return {recipe_of<slamb::adamw<communicator>>("adamw", {}, always(1), dense),
          recipe_of<slamb::lamb<communicator>>("lamb", {.max_gradient_norm = 1.0}, always(1), dense),
          recipe_of<lamb<slamb::sign, two_sided<>>>("lamb, sign", {}, always(2), dense),
          recipe_of<lamb<slamb::int8, residual<>>>("lamb, int8", {.max_gradient_norm = 1.0}, always(2), dense),
          recipe_of<lamb<slamb::random_k<>, residual<>>>("lamb, random_k", {}, always(1), dense),
          recipe_of<lamb<slamb::top_k, residual<>>>("lamb, top_k", {.compressor = {.k = 0.1}}, always(2), dense),
          recipe_of<lamb<detail::byte_chain, residual<>>>("lamb, random_k and int8", {}, always(2), dense),
          recipe_of<lamb<detail::chosen_chain, residual<>>>("lamb, top_k and int4", {}, always(3), dense)};
}

inline std::vector<recipe> recipes_of_slamb() {
  const auto with = []<class Compressor>(const std::string& name, const Compressor& c, std::uint64_t rounds) {
    return recipe_of<detail::slamb_with<Compressor>>(
        "slamb, " + name, {.local_steps = 1000, .dense_below = 10, .compressor = c}, always(rounds), {{"sparse", 1}});
  };
  return {with("random_k", slamb::random_k<>{}, 1),
          with("bernoulli", detail::drawn{}, 1),
          with("top_k", slamb::top_k{.k = 0.1}, 2),
          with("random_k and int8", detail::byte_chain{}, 2),
          with("bernoulli and natural", detail::drawn_chain{}, 2),
          with("top_k and int4", detail::chosen_chain{.sparsifier = {.k = 0.1}}, 3),
          recipe_of<detail::with_differences>("slamb, random_k, by differences", {.local_steps = 1, .dense_below = 10},
                                              always(3), {{"sparse", 1}})};
}

/// Optimizers with phases.
inline std::vector<recipe> recipes_with_phases() {
  using detail::communicator;
  constexpr auto per_tensor = slamb::scale_sharing::per_tensor;
  using one_bit_lamb = slamb::one_bit_lamb<communicator>;
  return {
      recipe_of<slamb::one_bit_adam<communicator>>("one_bit_adam", {.warm_up = {4}}, after_warm_up(4), warmed_up(4)),
      recipe_of<one_bit_lamb>("one_bit_lamb", {.warm_up = {4}}, after_warm_up(4), warmed_up(4)),
      recipe_of<one_bit_lamb>("one_bit_lamb by tensor", {.warm_up = {4}, .compressor = {.scales = per_tensor}},
                              after_warm_up(4), warmed_up(4)),
      recipe_of<detail::automatic<slamb::int8, slamb::frozen_trust_ratio>>(
          "one_bit_lamb, int8", {.warm_up = {.most_steps = 4}}, after_warm_up(4), warmed_up(4)),
      recipe_of<detail::automatic<slamb::sign, slamb::unit_trust_ratio>>(
          "one_bit_adam, automatic", {.warm_up = {.most_steps = 6}}, after_warm_up(6), warmed_up(6)),
      // τ = 2, 3, 4 and 6 refresh the variance; τ = 8, 9, 10, 12 and 16 exchange the local updates.
      recipe_of<slamb::zero_one_adam<communicator>>(
          "zero_one_adam",
          {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}},
          {1, 1, 1, 2, 1, 2, 2, 2, 2, 0, 2, 0, 0, 0, 2}, {{"variance", 1}, {"local steps", 7}}),
      recipe_of<detail::one_bit_lamb_in_16_bits>("one_bit_lamb by tensor, bf16",
                                                 {.warm_up = {4}, .compressor = {.scales = per_tensor}}, always(2),
                                                 warmed_up(4)),
      recipe_of<detail::zero_one_adam_in_16_bits>(
          "zero_one_adam, fp16",
          {.variance_schedule = {.freeze_step = 6, .update_scaler = 2}, .local_schedule = {.scaler = 2, .clipper = 4}},
          {2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 2, 0, 0, 0, 2}, {{"variance", 1}, {"local steps", 7}})};
}

/// All of them.
inline std::vector<recipe> every_recipe() {
  std::vector<recipe> all = recipes_of_lamb();
  for (recipe& r : recipes_of_slamb()) all.push_back(std::move(r));
  for (recipe& r : recipes_with_phases()) all.push_back(std::move(r));
  return all;
}

}  // namespace test_support
