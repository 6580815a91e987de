// The traffic of a training, computed from tensor shapes and options alone. Sizes come from the code that sizes the payloads, so
// a plan equals `statistics().traffic` byte for byte; tests/plan/traffic.cpp compares them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/core/statistics.hpp"
#include "slamb/core/storage_bytes.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail {

/// Adds `times` times `more` to `counts`.
inline void add_times(traffic_counts& counts, const traffic_counts& more, std::uint64_t times) {
  for (const collective kind :
       {collective::all_reduce, collective::all_gather, collective::all_to_all, collective::broadcast}) {
    const traffic& m = more[kind];
    counts[kind] =
        counts[kind] + traffic{times * m.rounds, times * m.elements, times * m.payload_bytes, times * m.sent_bytes};
  }
}

}  // namespace slamb::detail

namespace slamb::plan {

/// The shape of a tensor, as in `basic_parameter`.
struct tensor_shape {
  std::uint64_t size = 0;  ///< elements
  int dimensions = 2;
  bool compress = true;  ///< tensor_options::compress
};

/// d, the elements of all tensors.
constexpr std::uint64_t elements_of(std::span<const tensor_shape> tensors) noexcept {
  std::uint64_t sum = 0;
  for (const tensor_shape& t : tensors) sum += t.size;
  return sum;
}

/// The ranks of a plan.
struct world {
  int ranks = 1;                              ///< N ≥ 1
  std::uint64_t value_bytes = sizeof(float);  ///< bytes of an element that is summed; 2 if a Communicator sums in fp16
  storage_bytes stored{};                     ///< how arrays are stored, for memory traffic: `stored_by`

  /// @throws std::invalid_argument
  void validate() const {
    detail::require_in(ranks >= 1, "plan::world's ranks", ranks, ">= 1");
    detail::require_in(value_bytes >= 1 && value_bytes <= 8, "plan::world's value_bytes",
                       static_cast<double>(value_bytes), "in [1, 8]");
    const auto require_bytes = [](const char* name, double bytes) {
      detail::require_in(bytes >= 0.0 && bytes <= 8.0, name, bytes, "in [0, 8]");
    };
    require_bytes("plan::world's stored.parameter", stored.parameter);
    require_bytes("plan::world's stored.rounded", stored.rounded);
    require_bytes("plan::world's stored.data", stored.data);
    require_bytes("plan::world's stored.gradient", stored.gradient);
    require_bytes("plan::world's stored.momentum", stored.momentum);
    require_bytes("plan::world's stored.variance", stored.variance);
  }
};

/// The traffic of a recipe with `Options`, made by `plan_traffic(tensors, options, world)`. plan/<recipe>.hpp specialises it;
/// specialise it for options of your own, with these members:
///
///     traffic_counts step(std::uint64_t t) const;       // of step t = 1, 2, …
///     traffic_counts total(std::uint64_t steps) const;  // of steps 1 … steps
///     double memory_bytes(std::uint64_t steps) const;   // bytes of memory traffic a parameter and step, their mean
template <class Options>
class traffic_plan {
  static_assert(sizeof(Options) == 0, "slamb: there is no plan for these options; include plan/<recipe>.hpp");
};

/// A plan of equal steps, from which `traffic_plan` of an optimizer of your own can derive.
class repeated_step {
 public:
  /// @param memory_bytes  bytes of memory traffic per parameter and step
  repeated_step(const traffic_counts& traffic, double memory_bytes) : traffic_(traffic), memory_bytes_(memory_bytes) {}

  traffic_counts step(std::uint64_t /*t*/) const { return traffic_; }
  traffic_counts total(std::uint64_t steps) const {
    traffic_counts counts;
    detail::add_times(counts, traffic_, steps);
    return counts;
  }
  double memory_bytes(std::uint64_t /*steps*/) const { return memory_bytes_; }

 private:
  traffic_counts traffic_;
  double memory_bytes_;
};

/// The plan of the optimizer with `options` on tensors of these shapes.
/// @throws std::invalid_argument that names the value out of range
template <class Options>
traffic_plan<Options> plan_traffic(std::span<const tensor_shape> tensors, const Options& options, const world& world) {
  world.validate();
  return {tensors, options, world};
}

}  // namespace slamb::plan

namespace slamb::detail {

/// One all_reduce of `elements` values, if there are any. A single rank calls none.
inline traffic_counts sum_of(std::uint64_t elements, const plan::world& world) {
  traffic_counts counts;
  if (world.ranks > 1 && elements > 0) counts.record(collective::all_reduce, elements, world.value_bytes, world.ranks);
  return counts;
}

/// The collective of a step that clips by the mean of ‖g_i‖² over ranks: one value.
template <class Options>
traffic_counts clip_traffic(const Options& o, const plan::world& world) {
  return std::isfinite(o.max_gradient_norm) && !o.clip_locally ? sum_of(1, world) : traffic_counts{};
}

/// A quantized exchange: both phases, and one all_reduce of the dense tensors, if there are any.
///
/// @param on_single_rank  a single rank calls its collectives too, as with compress_single_rank
inline traffic_counts quantized_traffic(const wire_layout& wire, const plan::world& world,
                                        bool on_single_rank = false) {
  traffic_counts counts;
  if (world.ranks == 1 && !on_single_rank) return counts;
  counts.record(collective::all_to_all, wire.all_message_bytes(), 1, world.ranks);
  counts.record(collective::all_gather, wire.all_message_bytes(), 1, world.ranks);
  if (wire.dense_elements() > 0)
    counts.record(collective::all_reduce, wire.dense_elements(), world.value_bytes, world.ranks);
  return counts;
}

/// A quantized exchange whose phases have different quantizers.
inline traffic_counts quantized_traffic(const wire_layout& wire, const wire_layout& mean, const plan::world& world) {
  traffic_counts counts;
  if (world.ranks == 1) return counts;
  counts.record(collective::all_to_all, wire.all_message_bytes(), 1, world.ranks);
  counts.record(collective::all_gather, mean.all_message_bytes(), 1, world.ranks);
  if (wire.dense_elements() > 0)
    counts.record(collective::all_reduce, wire.dense_elements(), world.value_bytes, world.ranks);
  return counts;
}

/// The layout on the wire of all tensors.
/// @param chunks  the cuts, if they are those of another exchange
template <quantizer Q>
wire_layout wire_of(std::span<const plan::tensor_shape> tensors, const Q& q, int ranks, chunks_of chunks) {
  std::vector<wire_tensor> all;
  all.reserve(tensors.size());
  for (const plan::tensor_shape& t : tensors) all.push_back({t.size, t.compress});
  return {all, ranks, granularity_of(q), Q::bits_per_element, chunks};
}
template <quantizer Q>
wire_layout wire_of(std::span<const plan::tensor_shape> tensors, const Q& q, int ranks) {
  return wire_of(tensors, q, ranks, chunks_with(granularity_of(q)));
}

/// The exchange of dense gradients of a recipe whose other exchange has these options' Compressor.
template <class Options>
traffic_counts dense_traffic(std::span<const plan::tensor_shape> tensors, const Options& o, const plan::world& world) {
  if constexpr (quantizer<decltype(o.dense_compressor)>)
    return quantized_traffic(
        wire_of(tensors, o.dense_compressor, world.ranks, chunks_with(granularity_of(o.compressor))), world,
        o.compress_single_rank);
  else
    return sum_of(plan::elements_of(tensors), world);
}

/// The layout on the wire of a selected payload that is quantized.
template <quantizer Q>
wire_layout wire_of_payload(std::uint64_t elements, const Q& q, int ranks) {
  const wire_tensor payload{elements, true};
  return {std::span<const wire_tensor>(&payload, 1), ranks, granularity_of(q), Q::bits_per_element};
}

/// The number of elements that `s` selects of the tensor with element 0 `first`.
template <selection S>
std::uint64_t selected_of(const S& s, coordinate first) {
  if constexpr (capability::has_selected_before<S>) {
    first.index = first.tensor_size;
    return s.selected_before(first);
  } else if constexpr (capability::has_runs<S>) {
    std::uint64_t count = 0;
    s.runs(first, first.tensor_size,
           [&](std::uint64_t, std::uint64_t length, std::uint32_t age) { count += age == 0 ? length : 0; });
    return count;
  } else {
    std::uint64_t count = 0;
    for (; first.index != first.tensor_size; ++first.index) count += s.selects(first) ? 1 : 0;
    return count;
  }
}

/// The number of steps after which the payload sizes of `c` repeat; 0: unknown.
template <class C>
std::uint64_t period_of(const C& c) {
  if constexpr (requires { requires C::selects_all; })
    return 1;
  else if constexpr (requires { c.slots(); } && payload_is_constant<C>)
    return c.slots();
  else
    return 0;
}

/// Adds up `step(t)` for t = 1 … steps, where `step` repeats after `period` steps.
template <class Step>
traffic_counts total_of(std::uint64_t steps, std::uint64_t period, Step step) {
  traffic_counts counts;
  if (period == 0) period = std::max<std::uint64_t>(steps, 1);
  for (std::uint64_t t = 1; t <= std::min(period, steps); ++t) add_times(counts, step(t), (steps - t) / period + 1);
  return counts;
}

}  // namespace slamb::detail
