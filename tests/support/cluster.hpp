// Trains N ranks on a made-up model with the library, and compares them with the oracle. A run fails if the library writes a
// guard or a gradient.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/generate.hpp"
#include "support/made_optimizer.hpp"
#include "support/oracle.hpp"
#include "support/replica.hpp"

namespace test_support {

/// The inputs of a run: model, start, gradients, rates and masks. The optimizer's settings are separate.
struct experiment {
  model tensors;
  int world = 1;
  std::vector<float> start{};                                // [n]
  std::vector<std::vector<std::vector<float>>> gradients{};  // [step][rank][n]
  std::vector<std::vector<double>> rates{};                  // [step][group]
  std::vector<std::vector<std::uint8_t>> masks{};            // [step][n], for explicit_mask and the oracle

  std::size_t steps() const { return gradients.size(); }
};

/// Random parameters and gradients, and rates that differ from step to step and between the model's groups.
inline experiment make_experiment(model tensors, std::uint64_t seed, int world, std::size_t steps) {
  experiment e{.tensors = std::move(tensors), .world = world};
  const std::size_t n = total_size(e.tensors);
  int groups = 1;
  for (const tensor_spec& l : e.tensors) groups = std::max(groups, l.options.group + 1);
  e.start = random_parameters(seed, n);
  for (std::size_t t = 0; t < steps; ++t) {
    e.gradients.push_back(random_gradients(seed, t, world, n));
    const double rate = 0.01 * (1.0 + static_cast<double>(t) / 4.0);
    e.rates.push_back({rate});
    if (groups > 1) e.rates.back() = {rate, 0.5 * rate, t % 2 == 0 ? 0.2 * rate : 0.0};
    e.masks.push_back(random_mask(seed, t, n, 0.3));
  }
  return e;
}

/// Uses the same rate for all tensors at each step.
inline void use_one_rate(experiment& e, double rate) {
  for (auto& by_group : e.rates) by_group = {rate};
}

using trajectory = std::vector<std::vector<std::vector<float>>>;  // [step][rank][n]

inline slamb::host_backend one_thread() { return {.threads = 1}; }

/// A backend with one thread that cannot allocate while `is_empty`.
inline slamb::host_backend backend_that_can_be_empty(const bool& is_empty) {
  slamb::host_backend backend = one_thread();
  const slamb::allocator from = slamb::detail::host_allocator();
  backend.memory = {.allocate = [&is_empty, from](std::size_t bytes) -> void* {
                      if (is_empty) throw std::bad_alloc();
                      return from.allocate(bytes);
                    },
                    .deallocate = from.deallocate};
  return backend;
}

/// Trains rank `rank` of an experiment, and stores its parameters after every step in `reached`.
/// @return true if guards and gradients are unchanged
inline bool train_rank(const experiment& e, std::size_t rank,
                       const std::function<made_optimizer(std::span<const slamb::parameter>)>& make,
                       trajectory& reached) {
  replica mine(e.tensors, e.start);
  bool intact = true;
  made_optimizer optimizer = make(mine.parameters());
  for (std::size_t t = 0; t < e.steps(); ++t) {
    mine.set_gradient(e.gradients[t][rank]);
    if (t < e.masks.size()) optimizer.set_mask(e.masks[t]);
    optimizer.step(e.rates[t]);
    reached[t][rank] = mine.values();
    intact = intact && mine.intact();
  }
  return intact;
}

/// As above, with an Optimizer that is constructed here.
template <class Optimizer, class Communicator, class Backend>
bool train_rank(const experiment& e, std::size_t rank, const typename Optimizer::options_type& options,
                Communicator communicator, const Backend& backend, trajectory& reached) {
  const auto make = [&](std::span<const slamb::parameter> parameters) {
    return made_optimizer(Optimizer(parameters, options, std::move(communicator), backend));
  };
  return train_rank(e, rank, make, reached);
}

/// An empty trajectory with room for `e.world` ranks at every step.
inline trajectory place_of(const experiment& e) {
  return {e.steps(), std::vector<std::vector<float>>(static_cast<std::size_t>(e.world))};
}

/// Trains on `e.world` ranks; returns the parameters of every rank after every step.
inline trajectory train(const experiment& e, const optimizer_maker& make,
                        const slamb::host_backend& backend = one_thread()) {
  trajectory reached = place_of(e);
  std::atomic<bool> intact{true};
  slamb::run_ranks(e.world, [&](slamb::thread_communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto make_own = [&](std::span<const slamb::parameter> parameters) {
      return make(parameters, slamb::any_communicator<>(std::move(communicator)), backend);
    };
    if (!train_rank(e, rank, make_own, reached)) intact = false;
  });
  CHECK(intact);
  return reached;
}
template <class Optimizer>
trajectory train(const experiment& e, const typename Optimizer::options_type& options,
                 const slamb::host_backend& backend = one_thread()) {
  return train(e, maker_of<Optimizer>(options), backend);
}

/// The largest max |got − expected| / max |expected| of all steps, over ranks. `run` is an oracle at its start.
template <class Oracle>
double worst_error(const experiment& e, const trajectory& got, Oracle run) {
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    const oracle::vector rates = rates_of(e.tensors, e.rates[t]);
    if constexpr (std::same_as<Oracle, oracle::slamb>) {
      run.step(rates, widened(e.gradients[t]), e.masks[t]);
    } else {
      run.step(rates, widened(e.gradients[t]));
    }
    for (int rank = 0; rank < e.world; ++rank) {
      const std::vector<float>& reached = got[t][static_cast<std::size_t>(rank)];
      const oracle::vector& expected = [&]() -> const oracle::vector& {
        if constexpr (std::same_as<Oracle, oracle::slamb>) return run.parameters(rank);
        if constexpr (!std::same_as<Oracle, oracle::slamb>) return run.parameters();
      }();
      worst = std::max(worst, max_relative_error(reached, expected));
    }
  }
  return worst;
}

/// The oracle's settings for AdamW or LAMB, from the library's options.
template <class Options>
oracle::settings oracle_settings(const Options& o) {
  oracle::settings how{.algorithm = oracle::method::adamw,
                       .beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .epsilon = o.epsilon,
                       .bias_correction = o.bias_correction,
                       .max_gradient_norm = o.max_gradient_norm};
  if constexpr (requires { o.trust_ratio.adapt_without_weight_decay; }) {
    how.algorithm = oracle::method::lamb;
    how.trust_lower = o.trust_ratio.lower;
    how.trust_upper = o.trust_ratio.upper;
    how.adapt_without_weight_decay = o.trust_ratio.adapt_without_weight_decay;
  }
  return how;
}

/// The oracle's form of a trust ratio.
template <class TrustRatio>
inline constexpr oracle::rescaling form_of = oracle::rescaling::product;
template <bool Capped>
inline constexpr oracle::rescaling form_of<slamb::rescaled_trust_ratio<slamb::rescaling::blend, Capped>> =
    oracle::rescaling::blend;
template <>
inline constexpr oracle::rescaling form_of<slamb::rescaled_trust_ratio<slamb::rescaling::mean_step>> =
    oracle::rescaling::mean_step;

/// The oracle's settings for SLAMB, from the library's options.
template <class Options>
oracle::slamb_settings oracle_slamb_settings(const Options& o) {
  using ratio = decltype(o.trust_ratio);
  return {.form = form_of<ratio>,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .beta3 = o.beta3,
          .epsilon = o.epsilon,
          .bias_correction = o.bias_correction,
          .local_steps = static_cast<std::uint64_t>(o.local_steps),
          .dense_below = static_cast<std::size_t>(o.dense_below),
          .trust_lower = o.trust_ratio.lower,
          .trust_upper = o.trust_ratio.upper,
          .capped = slamb::capability::looks_at_staleness<ratio>,
          .update_bound = o.update_bound};
}

/// Trains AdamW or LAMB, and returns the error against the oracle.
template <class Optimizer>
double error_of_dense(const experiment& e, const typename Optimizer::options_type& options) {
  const oracle::adam_family run(oracle_tensors(e.tensors, options.weight_decay), widened(e.start),
                                oracle_settings(options));
  return worst_error(e, train<Optimizer>(e, options), run);
}

/// The oracle of SLAMB at its start.
template <class Options>
oracle::slamb slamb_oracle(const experiment& e, const Options& options) {
  return {oracle_tensors(e.tensors, options.weight_decay), widened(e.start), e.world, oracle_slamb_settings(options)};
}

/// Fills the masks of the steps from the compressor. An explicit_mask keeps the masks of the experiment.
template <class Compressor>
void take_masks(experiment& e, const Compressor& compressor) {
  if constexpr (!std::same_as<Compressor, slamb::explicit_mask>)
    for (std::size_t t = 0; t < e.steps(); ++t) e.masks[t] = mask_of(compressor.at(t + 1), e.tensors);
}

/// Trains SLAMB, and returns the error against the oracle.
template <class Optimizer>
double error_of_slamb(experiment e, const typename Optimizer::options_type& options) {
  take_masks(e, options.compressor);
  return worst_error(e, train<Optimizer>(e, options), slamb_oracle(e, options));
}

/// True if two trajectories are equal bit for bit.
inline bool same_bits(const trajectory& a, const trajectory& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return false;
    for (std::size_t rank = 0; rank < a[t].size(); ++rank)
      if (!same_bits(std::span(a[t][rank]), std::span(b[t][rank]))) return false;
  }
  return true;
}

/// True if all ranks have the same bits after step t.
inline bool ranks_agree(const trajectory& reached, std::size_t t) {
  return std::all_of(reached[t].begin(), reached[t].end(),
                     [&](const auto& values) { return same_bits(std::span(values), std::span(reached[t][0])); });
}

}  // namespace test_support
