// Every optimizer with every kind of exchange that it supports, made in one source. Schedules are short, so that a few steps cover
// all phases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
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
  optimizer_maker make;               // on ranks of any Communicator
  std::vector<std::uint64_t> rounds;  // [steps], without SLAMB's averaging of parameters at step 1
  std::vector<expected_phase> phases;
  bool averages_at_first = false;      // true for SLAMB by whole averages: it averages parameters at step 1
  bool exchanges_differences = false;  // true for SLAMB by differences: it exchanges them after its steps
  bool keeps_part =
      false;  // true with a partition: a step that fails after its first collective has updated a part; takes no shards
  bool equalizes_momenta =
      false;  // true for 1-bit LAMB: it equalizes the momenta of all tensors when compression begins
};

/// True for options of SLAMB whose ParameterSync exchanges differences, or averages.
template <class Options>
constexpr bool synchronizes_parameters(bool by_differences) {
  if constexpr (requires(const Options& o) { o.parameter_sync, o.local_steps; })
    return slamb::capability::sends_differences<decltype(Options::parameter_sync)> == by_differences;
  else
    return false;
}

/// True for options with a partition.
template <class Options>
inline constexpr bool keeps_part = false;
template <class Options>
requires requires(const Options& o) {
  requires slamb::capability::partitions_state<std::remove_cvref_t<decltype(o.parameter_sync)>>;
}
inline constexpr bool keeps_part<Options> = true;

template <class Optimizer>
recipe recipe_of(std::string name, const typename Optimizer::options_type& options, std::vector<std::uint64_t> rounds,
                 std::vector<expected_phase> phases) {
  using options_type = typename Optimizer::options_type;
  constexpr bool equalizes = requires(const options_type& o) { o.trust_ratio.factor_change; };
  return {std::move(name),
          maker_of<Optimizer>(options),
          std::move(rounds),
          std::move(phases),
          synchronizes_parameters<options_type>(false),
          synchronizes_parameters<options_type>(true),
          keeps_part<options_type>,
          equalizes};
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

/// All of them, as every_recipe.cpp makes them.
std::vector<recipe> every_recipe();

/// Those whose tensors may be cut into shards.
inline std::vector<recipe> every_recipe_for_shards() {
  std::vector<recipe> all = every_recipe();
  std::erase_if(all, [](const recipe& r) { return r.keeps_part; });
  return all;
}

}  // namespace test_support
