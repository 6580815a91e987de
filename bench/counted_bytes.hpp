// Bytes of memory traffic that a step makes, counted from what its passes declare. What the ranks' exchange itself
// moves is not counted: it is the communicator's.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "slamb/slamb.hpp"

namespace bench {

/// What happened between two looks at an optimizer's statistics.
struct steps_taken {
  double steps = 0.0;
  double averagings = 0.0;          ///< of the parameters over ranks
  double elements_exchanged = 0.0;  ///< by one rank, in all collectives
  double elements = 0.0;            ///< of the model
  double dense_elements = 0.0;      ///< of tensors that SLAMB always exchanges whole
  std::size_t ranks = 1;

  /// Elements exchanged a step as a fraction of the model, without the averagings.
  double payload_fraction() const { return (elements_exchanged / elements - averagings) / steps; }
};

/// Bytes an element a step: AdamW and LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     const steps_taken& taken) {
  using slamb::bytes_per_element;
  double bytes = 0.0;
  if (taken.ranks > 1)
    bytes += bytes_per_element<slamb::gather_gradient>();
  else if (optimizer.options().skip_non_finite)
    bytes += bytes_per_element<slamb::check_gradient>();
  if constexpr (TrustRatio::sums_per_segment == 0)
    return bytes + bytes_per_element<slamb::update_and_apply<TrustRatio>>();
  else
    return bytes + bytes_per_element<slamb::update_and_sum<TrustRatio>>() +
           bytes_per_element<slamb::apply_update<TrustRatio>>();
}

/// Bytes an element a step: SLAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(
    const slamb::basic_slamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& /*optimizer*/,
    const steps_taken& taken) {
  using slamb::bytes_per_element;
  using form = slamb::form_payload<TrustRatio>;
  using apply = slamb::apply_received<TrustRatio>;
  using selection = decltype(std::declval<const Compressor&>().at(std::uint64_t{1}));
  const double k = taken.payload_fraction();
  double bytes = bytes_per_element<form>() + bytes_per_element<apply>();
  bytes += k * static_cast<double>(sizeof(float)) * std::popcount(form::packs);
  if constexpr (TrustRatio::sums_per_segment > 0) bytes += k * bytes_per_element<slamb::sum_received<TrustRatio>>();
  if constexpr (apply::receives) bytes += k * static_cast<double>(sizeof(float));
  if constexpr (apply::needs_freshness && !slamb::has_age<selection>)  // a byte, read and written
    bytes += 2.0 * (1.0 - taken.dense_elements / taken.elements);
  if (taken.ranks > 1)
    bytes += (taken.averagings / taken.steps) *
             (bytes_per_element<slamb::gather_parameters>() + bytes_per_element<slamb::scatter_parameters>());
  return bytes;
}

}  // namespace bench
