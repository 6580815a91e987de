// The plan of LAMB and AdamW, which exchange the gradient at every step: dense, quantized or sparse.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/optimizer/detail/quantized_gradient.hpp"
#include "slamb/optimizer/detail/sparse_gradient.hpp"
#include "slamb/optimizer/lamb.hpp"
#include "slamb/plan/detail/payload.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::plan {

/// The plan of `lamb` and `adamw`.
template <class Compressor, class ErrorFeedback, class TrustRatio>
class traffic_plan<lamb_options<Compressor, ErrorFeedback, TrustRatio>> {
  static constexpr bool is_dense = requires { requires Compressor::selects_all; };

 public:
  using options_type = lamb_options<Compressor, ErrorFeedback, TrustRatio>;

  traffic_plan(std::span<const tensor_shape> tensors, const options_type& options, const world& world)
      : world_(world),
        options_(options),
        is_quantized_(world.ranks > 1 || options.compress_single_rank),
        exchange_(exchange_of(tensors, options, world, is_quantized_)) {}

  /// Traffic of step t = 1, 2, ….
  traffic_counts step([[maybe_unused]] std::uint64_t t) const {
    if constexpr (is_dense || quantizer<Compressor>)
      return exchange_;
    else
      return world_.ranks > 1 ? exchange_.step(t) : traffic_counts{};
  }

  /// Traffic of steps 1 … steps.
  traffic_counts total(std::uint64_t steps) const {
    if constexpr (is_dense || quantizer<Compressor>) {
      traffic_counts counts;
      detail::add_times(counts, exchange_, steps);
      return counts;
    } else {
      return world_.ranks > 1 ? exchange_.total(steps) : traffic_counts{};
    }
  }

  /// Bytes of memory traffic per parameter and step. Selected elements are counted at step 1.
  double memory_bytes(std::uint64_t /*steps*/) const {
    const bool clips = detail::bounds_norm(options_.max_gradient_norm);
    if constexpr (!is_dense && !quantizer<Compressor>)
      if (world_.ranks > 1)
        return detail::sparse_gradient_passes::memory_bytes(options_.compressor, world_.ranks,
                                                            exchange_.part_selected(), world_.stored) +
               (clips ? detail::bytes_per_element<detail::dense_gradient_passes::norm>() : 0.0) +
               detail::adam_passes<TrustRatio>::memory_bytes(true, world_.stored);
    return detail::gradient_step_bytes<TrustRatio, ErrorFeedback>(options_.compressor, world_.ranks, is_quantized_,
                                                                  options_.skip_non_finite, clips, world_.stored);
  }

 private:
  static auto exchange_of(std::span<const tensor_shape> tensors, const options_type& options, const world& world,
                          [[maybe_unused]] bool is_quantized) {
    if constexpr (is_dense) {
      return detail::sum_of(elements_of(tensors), world);
    } else if constexpr (quantizer<Compressor>) {
      detail::validate_policy(options.compressor);
      return detail::quantized_traffic(detail::wire_of(tensors, options.compressor, world.ranks), world, is_quantized);
    } else {
      return detail::payload_plan<Compressor>(options.compressor,
                                              std::vector<tensor_shape>(tensors.begin(), tensors.end()), world);
    }
  }

  using exchange_type = decltype(exchange_of({}, std::declval<const options_type&>(), {}, false));

  world world_;
  options_type options_;
  bool is_quantized_;
  exchange_type exchange_;
};

}  // namespace slamb::plan
