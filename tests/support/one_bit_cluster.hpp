// Trains N ranks with 1-bit Adam, 1-bit LAMB or 0/1 Adam, and compares them with the oracle.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slamb/slamb.hpp"
#include "support/cluster.hpp"
#include "support/one_bit_inputs.hpp"
#include "support/one_bit_oracle.hpp"
#include "support/zero_one_oracle.hpp"

namespace test_support {

/// The oracle's settings of the exchange, from the library's options.
template <class Options>
oracle::exchange_settings oracle_exchange_settings(const Options& o) {
  constexpr bool is_l2 = decltype(o.compressor)::scale == slamb::segment_scale::l2;
  return {.scales =
              o.compressor.scales == slamb::scale_sharing::fused ? oracle::sharing::fused : oracle::sharing::per_tensor,
          .compress_single_rank = o.compress_single_rank,
          .worker_errors = decltype(o.error_feedback)::worker_state,
          .server_errors = decltype(o.error_feedback)::server_state,
          .code = oracle::signs_with(is_l2 ? oracle::sign_scale::l2 : oracle::sign_scale::l1)};
}

/// The oracle of 1-bit Adam or 1-bit LAMB at its start.
///
/// @param left_out  [n] 1 for elements with no part in the exchange; empty: all take part
/// @param shards    each has an exchange of its own; empty: one for all
template <class Options>
requires requires(Options o) { o.warm_up; }
oracle::one_bit oracle_at_start(const experiment& e, const Options& o, std::vector<std::uint8_t> left_out = {},
                                std::vector<oracle::shard> shards = {}) {
  oracle::one_bit_settings how{.beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .epsilon = o.epsilon,
                               .warm_up = ~std::uint64_t{0},
                               .zero_aware = o.compressor.zero_aware,
                               .update_bound = o.update_bound,
                               .exchange = oracle_exchange_settings(o)};
  if constexpr (requires { o.warm_up.steps; }) how.warm_up = o.warm_up.steps;
  if constexpr (requires { o.trust_ratio.factor_change; }) {
    how.algorithm = oracle::method::lamb;
    how.trust_lower = o.trust_ratio.lower;
    how.trust_upper = o.trust_ratio.upper;
    how.average = o.trust_ratio.average;
    how.factor_lower = o.trust_ratio.factor_lower;
    how.factor_upper = o.trust_ratio.factor_upper;
    how.factor_change = o.trust_ratio.factor_change;
  }
  return {oracle_tensors(e.tensors, o.weight_decay),
          widened(e.start),
          e.world,
          how,
          std::move(left_out),
          std::move(shards)};
}

/// The oracle of 0/1 Adam at its start.
template <class Options>
requires requires(Options o) { o.variance_schedule; }
oracle::zero_one_adam oracle_at_start(const experiment& e, const Options& o, std::vector<std::uint8_t> left_out = {}) {
  const oracle::zero_one_settings how{.beta1 = o.beta1,
                                      .beta2 = o.beta2,
                                      .epsilon = o.epsilon,
                                      .freeze_step = o.variance_schedule.freeze_step,
                                      .update_scaler = o.variance_schedule.update_scaler,
                                      .local_scaler = o.local_schedule.scaler,
                                      .local_clipper = o.local_schedule.clipper,
                                      .zero_aware = o.compressor.zero_aware,
                                      .update_bound = o.update_bound,
                                      .exchange = oracle_exchange_settings(o)};
  return {oracle_tensors(e.tensors, o.weight_decay), widened(e.start), e.world, how, std::move(left_out)};
}

/// Tensors around the ends of vectors, chunks and tiles, and tensors smaller than most worlds; all have two dimensions.
inline model edge_model() {
  model tensors;
  for (const std::size_t size : {129U, 0U, 1U, 8192U, 3U, 127U, 8193U, 128U, 8191U, 300U, 5U})
    tensors.push_back({size});
  return tensors;
}

/// `edge_model` with options, in three groups.
inline model mixed_model(std::uint64_t seed) {
  model tensors = edge_model();
  random_source source(seed, 0x0E);
  for (tensor_spec& l : tensors) {
    if (source.below(3) == 0) l.options.weight_decay = 0.1 * source.uniform();
    if (source.below(3) == 0) l.options.learning_rate_factor = 0.5 + source.uniform();
    l.options.adapt = source.below(3) != 0;
    l.options.compress = source.below(3) != 0;
    l.options.group = static_cast<int>(source.below(3));
  }
  tensors[0].options.compress = false;
  tensors[3].options.compress = true;
  tensors.back().options.group = 2;
  return tensors;
}

inline std::vector<std::size_t> sizes_of(const model& tensors) {
  std::vector<std::size_t> sizes;
  for (const tensor_spec& l : tensors) sizes.push_back(l.size);
  return sizes;
}

/// As make_experiment, but with structured gradients, [step][rank][n].
inline experiment make_structured_experiment(model tensors, std::uint64_t seed, int world, std::size_t steps) {
  experiment e = make_experiment(std::move(tensors), seed, world, 0);
  int groups = 1;
  for (const tensor_spec& l : e.tensors) groups = std::max(groups, l.options.group + 1);
  for (std::size_t t = 0; t < steps; ++t) {
    e.gradients.push_back(structured_gradients(seed, t, world, sizes_of(e.tensors)));
    const double rate = 0.01 * (1.0 + static_cast<double>(t) / 8.0);
    e.rates.push_back({rate});
    if (groups > 1) e.rates.back() = {rate, 0.5 * rate, 0.2 * rate};
  }
  return e;
}

/// Changes the experiment's gradients until no sign depends on the last digits. `run` is an oracle at its start.
template <class Oracle>
void settle(experiment& e, Oracle run) {
  settling settled(std::move(run));
  for (std::size_t t = 0; t < e.steps(); ++t) settled.step(rates_of(e.tensors, e.rates[t]), e.gradients[t]);
}

/// The largest max |got − expected| / max |expected| of all steps, over ranks. `run` is an oracle at its start.
template <class Oracle>
double worst_one_bit_error(const experiment& e, const trajectory& got, Oracle run) {
  double worst = 0.0;
  for (std::size_t t = 0; t < e.steps(); ++t) {
    run.step(rates_of(e.tensors, e.rates[t]), widened(e.gradients[t]));
    for (int rank = 0; rank < e.world; ++rank)
      worst = std::max(worst, max_relative_error(got[t][static_cast<std::size_t>(rank)], run.parameters(rank)));
  }
  return worst;
}

/// Settles the experiment, trains, and compares with the oracle.
template <class Optimizer>
double error_of_one_bit(experiment e, const typename Optimizer::options_type& options,
                        std::vector<std::uint8_t> left_out = {}) {
  const auto run = oracle_at_start(e, options, std::move(left_out));
  settle(e, run);
  return worst_one_bit_error(e, train<Optimizer>(e, options), run);
}

}  // namespace test_support
