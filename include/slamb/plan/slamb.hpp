// The plan of SLAMB: the selected momentum at every step, and the parameters every H steps.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/plan/detail/payload.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::plan {

/// The plan of `slamb`.
template <class Compressor, class ErrorFeedback, class TrustRatio, class ParameterSync>
class traffic_plan<slamb_options<Compressor, ErrorFeedback, TrustRatio, ParameterSync>> {
 public:
  using options_type = slamb_options<Compressor, ErrorFeedback, TrustRatio, ParameterSync>;

  traffic_plan(std::span<const tensor_shape> tensors, const options_type& options, const world& world)
      : options_(options), world_(world), payload_(options.compressor, marked(tensors, options.dense_below), world) {
    detail::require_in(options_.local_steps >= 0, "local_steps", static_cast<double>(options_.local_steps), ">= 0");
    if (world_.ranks == 1) return;
    if constexpr (capability::sends_differences<ParameterSync>)
      plan_differences(tensors);
    else
      plan_averaging();
  }

  /// |M_t|, the number of elements selected at step t = 1, 2, ….
  std::uint64_t selected(std::uint64_t t) const { return payload_.selected(t); }

  /// Traffic of step t = 1, 2, ….
  traffic_counts step(std::uint64_t t) const {
    traffic_counts counts = payload_.step(t);
    detail::add_times(counts, detail::clip_traffic(options_, world_), 1);
    if (local_steps() > 0 && (t - 1) % local_steps() == 0) detail::add_times(counts, exchange_, 1);
    return counts;
  }

  /// Traffic of steps 1 … steps. Fast if payloads repeat, as with round robin every 1/k steps.
  traffic_counts total(std::uint64_t steps) const {
    traffic_counts counts = payload_.total(steps);
    detail::add_times(counts, detail::clip_traffic(options_, world_), steps);
    detail::add_times(counts, exchange_, exchanges(steps));
    return counts;
  }

  /// Bytes of memory traffic per parameter and step, the mean of steps 1 … steps; docs/performance.md. Selected elements are
  /// counted at step 1.
  double memory_bytes(std::uint64_t steps) const {
    const double exchanges_per_step =
        world_.ranks > 1 && steps > 0 ? static_cast<double>(exchanges(steps)) / static_cast<double>(steps) : 0.0;
    return detail::own_clip_bytes(std::isfinite(options_.max_gradient_norm), world_.stored) +
           detail::slamb_passes<TrustRatio>::memory_bytes(options_.compressor, world_.ranks, payload_.part_selected(),
                                                          payload_.part_selectable(), world_.stored) +
           exchanges_per_step * detail::outer_step_bytes(options_.parameter_sync, world_.ranks, world_.stored);
  }

 private:
  // The tensors, with a mark on those that are always exchanged dense.
  static std::vector<tensor_shape> marked(std::span<const tensor_shape> tensors, std::uint64_t dense_below) {
    std::vector<tensor_shape> all(tensors.begin(), tensors.end());
    for (tensor_shape& t : all) t.compress = !detail::is_sent_dense(t.size, t.dimensions <= 1, t.compress, dense_below);
    return all;
  }

  std::uint64_t local_steps() const noexcept { return static_cast<std::uint64_t>(options_.local_steps); }

  // Exchanges of the parameters in steps 1 … steps.
  std::uint64_t exchanges(std::uint64_t steps) const noexcept {
    if (local_steps() == 0) return 0;
    return steps / local_steps() + (steps % local_steps() != 0 ? 1 : 0);
  }

  // Differences of all tensors are sent in codes, also of those that are always exchanged dense as a part of the momentum.
  void plan_differences(std::span<const tensor_shape> tensors) {
    const auto& difference = options_.parameter_sync.quantizer;
    const auto& mean = options_.parameter_sync.mean_quantizer;
    const detail::chunks_of chunks = detail::common_chunks(difference, mean);
    exchange_ = detail::quantized_traffic(detail::wire_of(tensors, difference, world_.ranks, chunks),
                                          detail::wire_of(tensors, mean, world_.ranks, chunks), world_);
  }

  // Parameters are averaged in pieces, through the payload's memory.
  void plan_averaging() {
    std::vector<std::uint64_t> tiles;
    for (const tensor_shape& t : payload_.tensors())
      for (std::uint64_t first = 0; first < t.size; first += detail::layout::tile_size)
        tiles.push_back(std::min<std::uint64_t>(detail::layout::tile_size, t.size - first));
    constexpr std::uint64_t planes = detail::slamb_passes<TrustRatio>::form::packs::count;
    const std::uint64_t least = std::min<std::uint64_t>(detail::layout::tile_size, elements_of(payload_.tensors()));
    detail::for_each_piece(
        tiles.size(), std::max(payload_.largest() * planes, least), [&](std::size_t i) { return tiles[i]; },
        [&](detail::tile_range, std::uint64_t elements) {
          detail::add_times(exchange_, detail::sum_of(elements, world_), 1);
        });
  }

  options_type options_;
  world world_;
  detail::payload_plan<Compressor> payload_;
  traffic_counts exchange_;  // of the parameters
};

}  // namespace slamb::plan
