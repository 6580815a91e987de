// The plan of SLAMB: the selected part of the momentum at every step, and the parameters every H steps.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/optimizer/slamb.hpp"
#include "slamb/plan/detail/memory.hpp"
#include "slamb/plan/detail/payload.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::plan {

/// The plan of `basic_slamb`.
template <class Compressor, class ErrorFeedback, class TrustRatio>
class traffic_plan<slamb_options<Compressor, ErrorFeedback, TrustRatio>> {
 public:
  using options_type = slamb_options<Compressor, ErrorFeedback, TrustRatio>;

  traffic_plan(std::span<const tensor_shape> tensors, const options_type& options, const world& world)
      : options_(options), world_(world), payload_(options.compressor, marked(tensors, options.dense_below), world) {
    detail::require_in(options_.local_steps >= 0, "local_steps", static_cast<double>(options_.local_steps), ">= 0");
    if (world_.ranks > 1) plan_averaging();
  }

  /// |M_t|, the elements that are selected at step t = 1, 2, ….
  std::uint64_t selected(std::uint64_t t) const { return payload_.selected(t); }

  /// Of step t = 1, 2, ….
  traffic_counts step(std::uint64_t t) const {
    traffic_counts counts = payload_.step(t);
    if (local_steps() > 0 && (t - 1) % local_steps() == 0) detail::add_times(counts, averaging_, 1);
    return counts;
  }

  /// Of steps 1 … steps. Fast for a compressor whose payloads repeat, as those of round robin do every 1/k steps.
  traffic_counts total(std::uint64_t steps) const {
    traffic_counts counts = payload_.total(steps);
    detail::add_times(counts, averaging_, averagings(steps));
    return counts;
  }

  /// Of memory traffic a parameter a step, the mean of steps 1 … steps; docs/performance.md. What is selected is counted
  /// at step 1.
  double memory_bytes(std::uint64_t steps) const {
    using form = detail::form_payload<TrustRatio>;
    using apply = detail::apply_received<TrustRatio>;
    using payload_type = detail::payload_plan<Compressor>;
    constexpr double value = sizeof(float);
    const double sent = payload_.part_selected();
    double bytes = detail::bytes_per_element<form>() + value * form::packs::stored * sent;
    if (TrustRatio::sums_per_segment > 0) bytes += detail::bytes_per_element<detail::sum_received<TrustRatio>>() * sent;
    bytes += detail::bytes_per_element<apply>() + (apply::receives ? value : 0.0) * sent;
    bytes += detail::choice_bytes<detail::momentum_to_choose_from<TrustRatio>, typename payload_type::sparsifier_type>(
        world_.ranks);
    if (world_.ranks > 1) bytes += detail::encoded_payload_bytes<Compressor, false>(world_.ranks) * sent;
    if constexpr (apply::needs_discount && !capability::has_age<typename payload_type::selection_type>)
      bytes += 2.0 * sizeof(detail::stored_age_t<typename payload_type::selection_type>) * payload_.part_selectable();
    if (world_.ranks > 1 && steps > 0)
      bytes += static_cast<double>(averagings(steps)) / static_cast<double>(steps) *
               (detail::bytes_per_element<detail::gather_parameters>() +
                detail::bytes_per_element<detail::scatter_parameters>());
    return bytes;
  }

 private:
  // The tensors, with those that are always exchanged whole marked.
  static std::vector<tensor_shape> marked(std::span<const tensor_shape> tensors, std::uint64_t dense_below) {
    std::vector<tensor_shape> all(tensors.begin(), tensors.end());
    for (tensor_shape& t : all) t.compress = !detail::is_sent_dense(t.size, t.dimensions <= 1, t.compress, dense_below);
    return all;
  }

  std::uint64_t local_steps() const noexcept { return static_cast<std::uint64_t>(options_.local_steps); }

  // Of the parameters, in steps 1 … steps.
  std::uint64_t averagings(std::uint64_t steps) const noexcept {
    if (local_steps() == 0) return 0;
    return steps / local_steps() + (steps % local_steps() != 0 ? 1 : 0);
  }

  // The parameters go in pieces through the payload's memory.
  void plan_averaging() {
    std::vector<std::uint64_t> tiles;
    for (const tensor_shape& t : payload_.tensors())
      for (std::uint64_t first = 0; first < t.size; first += detail::layout::tile_size)
        tiles.push_back(std::min<std::uint64_t>(detail::layout::tile_size, t.size - first));
    constexpr std::uint64_t planes = TrustRatio::sums_per_segment > 0 ? 3 : 1;
    const std::uint64_t least = std::min<std::uint64_t>(detail::layout::tile_size, elements_of(payload_.tensors()));
    detail::for_each_piece(
        tiles.size(), std::max(payload_.largest() * planes, least), [&](std::size_t i) { return tiles[i]; },
        [&](detail::tile_range, std::uint64_t elements) {
          detail::add_times(averaging_, detail::sum_of(elements, world_), 1);
        });
  }

  options_type options_;
  world world_;
  detail::payload_plan<Compressor> payload_;
  traffic_counts averaging_;
};

}  // namespace slamb::plan
