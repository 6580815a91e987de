// The optimizers that the program knows by name, and the cost of each over the training.
#pragma once

#include <array>
#include <cstdint>
#include <slamb/slamb.hpp>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "../common/usage_error.hpp"
#include "settings.hpp"

namespace plan {

using tensor_span = std::span<const slamb::plan::tensor_shape>;

/// The cost of an optimizer over all steps of a training, for one rank.
struct outline {
  slamb::traffic_counts traffic;      ///< with the ranks that hold the same shard, or the whole model
  slamb::traffic in_shards{};         ///< with the ranks that hold the other shards
  double memory_bytes = 0.0;          ///< bytes of memory traffic
  std::uint64_t launches = 0;         ///< kernels, on a device
  std::uint64_t optimizer_bytes = 0;  ///< memory of the optimizer
};

/// One optimizer that the program can forecast.
struct planned_optimizer {
  std::string_view name;
  outline (*plan)(tensor_span, const settings&, const slamb::plan::world&);
};

namespace detail {

template <class Rounding>
slamb::plan::storage_bytes storage_with(const settings& chosen, slamb::parameter::element_type type) {
  namespace precision = slamb::precision;
  using host = slamb::host_backend;
  if (chosen.moments == "8-bit")
    return slamb::plan::stored_by<precision::mixed<host, Rounding, precision::eight_bit_moments>>(type, type);
  if (chosen.moments == "bf16-momentum")
    return slamb::plan::stored_by<precision::mixed<host, Rounding, precision::bfloat16_momentum>>(type, type);
  return slamb::plan::stored_by<precision::mixed<host, Rounding>>(type, type);
}

}  // namespace detail

/// How all optimizers store their arrays.
inline slamb::plan::storage_bytes storage_of(const settings& chosen) {
  const auto type = chosen.precision == "bf16"   ? slamb::parameter::bfloat16
                    : chosen.precision == "fp16" ? slamb::parameter::float16
                                                 : slamb::parameter::float32;
  return chosen.rounding_mode() == "masters"
             ? detail::storage_with<slamb::precision::master_copies>(chosen, type)
             : detail::storage_with<slamb::precision::stochastic_rounding>(chosen, type);
}

/// Elements that one rank holds.
inline std::uint64_t elements_of_rank(tensor_span tensors, const slamb::plan::world& world) {
  std::uint64_t own = 0;
  for (const slamb::plan::tensor_shape& t : tensors) own += world.own_size(t);
  return own;
}

namespace detail {

/// The memory of an optimizer, whose arrays are stored as `world` says. The plan of an optimizer on floats has all in floats.
/// @param masters  elements of which the optimizer keeps a master copy, if parameters have sixteen bits
inline std::uint64_t optimizer_bytes(const slamb::memory_report& of_floats, std::uint64_t masters,
                                     const slamb::plan::world& world) {
  double bytes = 0.0;
  for (const slamb::memory_report::use& use : of_floats.uses)
    bytes += static_cast<double>(use.bytes) * world.stored.of(use.purpose) / sizeof(float);
  if (world.stored.rounded > 0.0) bytes += static_cast<double>(masters) * world.stored.parameter;
  return static_cast<std::uint64_t>(bytes);
}

/// Elements of which a rank keeps a master copy, if parameters have sixteen bits: with a partition, those of its part. If their
/// differences are sent, the plan has these copies already.
template <class Options>
std::uint64_t masters_of_rank(std::uint64_t own, const Options& options, const slamb::plan::world& world) {
  if constexpr (requires { requires decltype(options.parameter_sync)::partitions_state; }) {
    const auto ranks = static_cast<std::uint64_t>(world.ranks);
    if (ranks > 1) return slamb::quantizer<decltype(options.parameter_sync.quantizer)> ? 0 : (own + ranks - 1) / ranks;
  }
  return own;
}

template <class Options>
outline outline_of(tensor_span tensors, const Options& options, const settings& chosen,
                   const slamb::plan::world& world) {
  const auto planned = slamb::plan::plan_traffic(tensors, options, world);
  const std::uint64_t own = elements_of_rank(tensors, world);
  return {
      .traffic = planned.total(chosen.steps),
      .in_shards = planned.total_in_shards(chosen.steps),
      .memory_bytes = planned.memory_bytes(chosen.steps) * static_cast<double>(own) * static_cast<double>(chosen.steps),
      .launches = planned.total_launches(chosen.steps),
      .optimizer_bytes = optimizer_bytes(planned.memory(), masters_of_rank(own, options, world), world)};
}

template <class Optimizer>
outline plan_dense(tensor_span tensors, const settings& chosen, const slamb::plan::world& world) {
  return outline_of(tensors, typename Optimizer::options_type{}, chosen, world);
}

inline outline plan_slamb(tensor_span tensors, const settings& chosen, const slamb::plan::world& world) {
  slamb::slamb<>::options_type options;
  options.compressor.k = chosen.k;
  options.local_steps = static_cast<std::int64_t>(chosen.local_steps);
  return outline_of(tensors, options, chosen, world);
}

inline outline plan_slamb_int8(tensor_span tensors, const settings& chosen, const slamb::plan::world& world) {
  using optimizer = slamb::slamb<slamb::chain<slamb::random_k<>, slamb::int8>>;
  typename optimizer::options_type options;
  options.compressor.sparsifier.k = chosen.k;
  options.local_steps = static_cast<std::int64_t>(chosen.local_steps);
  return outline_of(tensors, options, chosen, world);
}

template <class Optimizer>
outline plan_one_bit(tensor_span tensors, const settings& chosen, const slamb::plan::world& world) {
  typename Optimizer::options_type options;
  options.warm_up.steps = chosen.warmup();
  return outline_of(tensors, options, chosen, world);
}

inline outline plan_zero_one_adam(tensor_span tensors, const settings& chosen, const slamb::plan::world& world) {
  slamb::zero_one_adam<>::options_type options;
  options.variance_schedule.freeze_step = chosen.freeze();
  options.variance_schedule.update_scaler = chosen.variance_update_scaler;
  options.local_schedule.scaler = chosen.local_step_scaler;
  options.local_schedule.clipper = chosen.local_step_clipper;
  return outline_of(tensors, options, chosen, world);
}

}  // namespace detail

inline constexpr std::array<planned_optimizer, 9> planned_optimizers{{
    {"lamb", detail::plan_dense<slamb::lamb<>>},
    {"lamb+partition", detail::plan_dense<slamb::lamb<slamb::sync::partition<>>>},
    {"lamb+partition+int8", detail::plan_dense<slamb::lamb<slamb::int8, slamb::sync::partition<slamb::int8>>>},
    {"adamw", detail::plan_dense<slamb::adamw<>>},
    {"slamb", detail::plan_slamb},
    {"slamb+int8", detail::plan_slamb_int8},
    {"one_bit_adam", detail::plan_one_bit<slamb::one_bit_adam<>>},
    {"one_bit_lamb", detail::plan_one_bit<slamb::one_bit_lamb<>>},
    {"zero_one_adam", detail::plan_zero_one_adam},
}};

inline std::vector<std::string_view> optimizer_names() { return programs::names_of(planned_optimizers); }

/// The cost of the named optimizer, with the chosen settings.
/// @throws std::invalid_argument for an unknown name
inline outline plan_optimizer(std::string_view name, tensor_span tensors, const settings& chosen,
                              const slamb::plan::world& world) {
  for (const planned_optimizer& o : planned_optimizers)
    if (o.name == name) return o.plan(tensors, chosen, world);
  throw std::invalid_argument("no optimizer is named '" + std::string(name) + "'");
}

}  // namespace plan
