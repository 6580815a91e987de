// The plan of LAMB and AdamW: the gradient at every step, whole, in codes, or a selected part of it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/optimizer/detail/compressed_gradient.hpp"
#include "slamb/optimizer/lamb.hpp"
#include "slamb/plan/detail/memory.hpp"
#include "slamb/plan/detail/payload.hpp"
#include "slamb/plan/traffic.hpp"

namespace slamb::plan {

/// The plan of `basic_lamb`.
template <class Compressor, class ErrorFeedback, class TrustRatio>
class traffic_plan<lamb_options<Compressor, ErrorFeedback, TrustRatio>> {
  static constexpr bool is_whole = requires { requires Compressor::selects_all; };

 public:
  using options_type = lamb_options<Compressor, ErrorFeedback, TrustRatio>;

  traffic_plan(std::span<const tensor_shape> tensors, const options_type& options, const world& world)
      : world_(world),
        options_(options),
        is_quantized_(world.ranks > 1 || options.compress_single_rank),
        exchange_(exchange_of(tensors, options, world, is_quantized_)) {}

  /// Of step t = 1, 2, ….
  traffic_counts step([[maybe_unused]] std::uint64_t t) const {
    if constexpr (is_whole || quantizer<Compressor>)
      return exchange_;
    else
      return world_.ranks > 1 ? exchange_.step(t) : traffic_counts{};
  }

  /// Of steps 1 … steps.
  traffic_counts total(std::uint64_t steps) const {
    if constexpr (is_whole || quantizer<Compressor>) {
      traffic_counts counts;
      detail::add_times(counts, exchange_, steps);
      return counts;
    } else {
      return world_.ranks > 1 ? exchange_.total(steps) : traffic_counts{};
    }
  }

  /// Of memory traffic a parameter a step. What is selected is counted at step 1.
  double memory_bytes(std::uint64_t /*steps*/) const {
    const bool clips = options_.max_gradient_norm > 0.0 && std::isfinite(options_.max_gradient_norm);
    return gradient_bytes(clips) + (clips ? detail::bytes_per_element<detail::sum_gradient>() : 0.0) +
           detail::adam_step_bytes<TrustRatio>();
  }

 private:
  static auto exchange_of(std::span<const tensor_shape> tensors, const options_type& options, const world& world,
                          [[maybe_unused]] bool is_quantized) {
    if constexpr (is_whole) {
      return detail::sum_of(elements_of(tensors), world);
    } else if constexpr (quantizer<Compressor>) {
      detail::validate_policy(options.compressor);
      return detail::quantized(detail::wire_of(tensors, options.compressor, world.ranks), world, is_quantized);
    } else {
      return detail::payload_plan<Compressor>(options.compressor,
                                              std::vector<tensor_shape>(tensors.begin(), tensors.end()), world);
    }
  }

  // Until the mean gradient is there.
  double gradient_bytes(bool clips) const {
    if constexpr (quantizer<Compressor>) {
      if (is_quantized_)
        return detail::quantized_step_bytes<detail::decode_gradient, Compressor, ErrorFeedback>(world_.ranks);
    } else if constexpr (!is_whole) {
      if (world_.ranks > 1) {
        using form = detail::form_selected_gradient;
        using receive = detail::receive_selected_gradient;
        constexpr double value = sizeof(float);
        const double packed = value * form::packs::stored;
        const double received = value * ((receive::receives ? 1 : 0) + (capability::chained<Compressor> ? 1 : 0));
        return detail::bytes_per_element<form>() + detail::bytes_per_element<receive>() +
               detail::choice_bytes<form, typename detail::payload_plan<Compressor>::sparsifier_type>(world_.ranks) +
               exchange_.part_selected() *
                   (packed + received + detail::encoded_payload_bytes<Compressor, true>(world_.ranks));
      }
    }
    if (world_.ranks > 1 || (options_.skip_non_finite && !clips)) return detail::dense_gradient_bytes(world_.ranks);
    return 0.0;
  }

  using exchange_type = decltype(exchange_of({}, std::declval<const options_type&>(), {}, false));

  world world_;
  options_type options_;
  bool is_quantized_;
  exchange_type exchange_;
};

}  // namespace slamb::plan
