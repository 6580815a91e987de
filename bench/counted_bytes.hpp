// Bytes of memory traffic that a step makes, counted from what its passes declare. What the ranks' exchange itself
// moves is not counted: it is the communicator's.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "slamb/slamb.hpp"

namespace bench {

/// What was done while the clock ran.
struct steps_taken {
  std::uint64_t last = 0;           ///< t of the last step
  std::string phase{};              ///< that all steps were of
  double averagings = 0.0;          ///< of the parameters over ranks, a step
  double exchanges_of_codes = 0.0;  ///< a step
  std::size_t ranks = 1;
};

/// Which part of the model SLAMB exchanges at a step, and which part it could leave out at another.
struct payload_fractions {
  double sent = 0.0;
  double compressed = 0.0;
};

/// Counts what `options.compressor` selects of the tensors at step t, and what is always exchanged whole.
template <class Options>
payload_fractions payload_at(std::uint64_t t, std::span<const slamb::parameter> tensors, const Options& options) {
  slamb::detail::layout layout(tensors, 0.0);
  const auto& sparsifier = slamb::detail::sparsifier_of(options.compressor);
  std::uint64_t sent = 0, compressed = 0;
  for (slamb::detail::segment& s : layout.segments()) {
    s.dense = s.dense || s.one_dimensional || s.size < options.dense_below;
    if (!s.dense) compressed += s.size;
  }
  if constexpr (slamb::data_dependent_sparsifier<std::remove_cvref_t<decltype(sparsifier)>>) {
    for (const slamb::detail::segment& s : layout.segments())
      sent += s.dense ? s.size : sparsifier.largest_payload(s.size);
  } else {
    const auto selection = sparsifier.at(t);
    for (const slamb::detail::tile& tile : layout.tiles())
      sent += slamb::detail::host::count_selected(selection, layout.segments()[tile.segment], tile);
  }
  const auto elements = static_cast<double>(layout.elements());
  return {static_cast<double>(sent) / elements, static_cast<double>(compressed) / elements};
}

/// Bytes an element of a step with the whole gradient: the passes of AdamW and LAMB.
///
/// @param checks  whether one rank alone looks for gradients that are not finite
template <class TrustRatio>
double bytes_of_whole_step(std::size_t ranks, bool checks) {
  using slamb::detail::bytes_per_element;
  double bytes = 0.0;
  if (ranks > 1)
    bytes += bytes_per_element<slamb::detail::gather_gradient>();
  else if (checks)
    bytes += bytes_per_element<slamb::detail::check_gradient>();
  if constexpr (TrustRatio::sums_per_segment == 0)
    return bytes + bytes_per_element<slamb::detail::update_and_apply<TrustRatio>>();
  else
    return bytes + bytes_per_element<slamb::detail::update_and_sum<TrustRatio>>() +
           bytes_per_element<slamb::detail::apply_update<TrustRatio>>();
}

/// Bytes an element a step: AdamW and LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     std::span<const slamb::parameter> /*tensors*/, const steps_taken& taken) {
  return bytes_of_whole_step<TrustRatio>(taken.ranks, optimizer.options().skip_non_finite);
}

/// Bytes on the wire of an element: its code, and its share in the scale of a block.
template <slamb::quantizer Quantizer>
double code_bytes(const Quantizer& quantizer) {
  double bytes = Quantizer::bits_per_element / 8.0;
  if (slamb::detail::scale_groups_of(quantizer).of == slamb::detail::scale_groups::blocks)
    bytes += static_cast<double>(sizeof(float)) / slamb::detail::scale_groups_of(quantizer).block;
  return bytes;
}

/// Bytes an element of the payload of its exchange by codes, with N > 1 ranks: it is measured where the scale must be known
/// first, and encoded; the chunk's mean is decoded, and encoded again; then mean and loss are decoded into the payload.
template <slamb::quantizer Quantizer>
double bytes_of_quantized_payload(const Quantizer& quantizer, std::size_t ranks) {
  constexpr double value = sizeof(float);
  constexpr double rounds = slamb::detail::shared_scales<Quantizer>::are_known_first ? 2.0 : 1.0;
  const double code = code_bytes(quantizer), n = static_cast<double>(ranks);
  return rounds * value + code + (rounds * (n * code + value) + code) / n + 2.0 * value + 2.0 * code;
}

/// Bytes an element of what tells how old the exchange of each is, where that is stored: read and written. A choice by value
/// is made of gradient and momentum, and is a bit that is written once and read by both passes.
///
/// @param compressed  the part of the elements that can be left out
template <class Sparsifier>
double bytes_of_ages(double compressed) {
  if constexpr (slamb::data_dependent_sparsifier<Sparsifier>)
    return (2.0 * sizeof(slamb::detail::bitmap_selection::age_type) + 2.0 * sizeof(float) + 3.0 / 8.0) * compressed;
  else if constexpr (!slamb::capability::has_age<decltype(std::declval<const Sparsifier&>().at(std::uint64_t{1}))>)
    return 2.0 * sizeof(slamb::detail::stored_age_t<decltype(std::declval<const Sparsifier&>().at(std::uint64_t{1}))>) *
           compressed;
  else
    return 0.0;
}

/// Bytes an element a step: SLAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_slamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  using slamb::detail::bytes_per_element;
  using form = slamb::detail::form_payload<TrustRatio>;
  using apply = slamb::detail::apply_received<TrustRatio>;
  using sparsifier = std::remove_cvref_t<decltype(slamb::detail::sparsifier_of(std::declval<const Compressor&>()))>;
  constexpr double value = sizeof(float);
  const payload_fractions payload = payload_at(taken.last, tensors, optimizer.options());
  double bytes = bytes_per_element<form>() + value * form::packs::stored * payload.sent;
  if constexpr (TrustRatio::sums_per_segment > 0)
    bytes += bytes_per_element<slamb::detail::sum_received<TrustRatio>>() * payload.sent;
  bytes += bytes_per_element<apply>() + (apply::receives ? value : 0.0) * payload.sent;
  bytes += bytes_of_ages<sparsifier>(payload.compressed);
  if constexpr (slamb::capability::chained<Compressor>)
    if (taken.ranks > 1)
      bytes += bytes_of_quantized_payload(optimizer.options().compressor.quantizer, taken.ranks) * payload.sent;
  return bytes + taken.averagings * (bytes_per_element<slamb::detail::gather_parameters>() +
                                     bytes_per_element<slamb::detail::scatter_parameters>());
}

}  // namespace bench
