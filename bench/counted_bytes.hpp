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
  slamb::layout layout(tensors, 0.0);
  const auto selection = options.compressor.at(t);
  std::uint64_t sent = 0, compressed = 0;
  for (slamb::segment& s : layout.segments()) {
    s.dense = s.dense || s.one_dimensional || s.size < options.dense_below;
    if (!s.dense) compressed += s.size;
  }
  for (const slamb::tile& tile : layout.tiles())
    sent += slamb::host::count_selected(selection, layout.segments()[tile.segment], tile);
  const auto elements = static_cast<double>(layout.elements());
  return {static_cast<double>(sent) / elements, static_cast<double>(compressed) / elements};
}

/// Bytes an element of a step with the whole gradient: the passes of AdamW and LAMB.
///
/// @param checks  whether one rank alone looks for gradients that are not finite
template <class TrustRatio>
double bytes_of_whole_step(std::size_t ranks, bool checks) {
  using slamb::bytes_per_element;
  double bytes = 0.0;
  if (ranks > 1)
    bytes += bytes_per_element<slamb::gather_gradient>();
  else if (checks)
    bytes += bytes_per_element<slamb::check_gradient>();
  if constexpr (TrustRatio::sums_per_segment == 0)
    return bytes + bytes_per_element<slamb::update_and_apply<TrustRatio>>();
  else
    return bytes + bytes_per_element<slamb::update_and_sum<TrustRatio>>() +
           bytes_per_element<slamb::apply_update<TrustRatio>>();
}

/// Bytes an element a step: AdamW and LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     std::span<const slamb::parameter> /*tensors*/, const steps_taken& taken) {
  return bytes_of_whole_step<TrustRatio>(taken.ranks, optimizer.options().skip_non_finite);
}

/// Bytes an element a step: SLAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_slamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  using slamb::bytes_per_element;
  using form = slamb::form_payload<TrustRatio>;
  using apply = slamb::apply_received<TrustRatio>;
  using selection = decltype(std::declval<const Compressor&>().at(std::uint64_t{1}));
  constexpr double value = sizeof(float);
  const payload_fractions payload = payload_at(taken.last, tensors, optimizer.options());
  double bytes = bytes_per_element<form>() + value * std::popcount(form::packs) * payload.sent;
  if constexpr (TrustRatio::sums_per_segment > 0)
    bytes += bytes_per_element<slamb::sum_received<TrustRatio>>() * payload.sent;
  bytes += bytes_per_element<apply>() + (apply::receives ? value : 0.0) * payload.sent;
  if constexpr (apply::needs_freshness && !slamb::has_age<selection>)
    bytes += 2.0 * sizeof(std::uint8_t) * payload.compressed;  // the age, read and written
  return bytes + taken.averagings *
                     (bytes_per_element<slamb::gather_parameters>() + bytes_per_element<slamb::scatter_parameters>());
}

}  // namespace bench
