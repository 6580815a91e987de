// The memory traffic of a step, counted from what its passes declare; detail/pass/pass.hpp. What a communicator moves is its own.
#pragma once

#include <bit>
#include <cstddef>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/exchange/sparse.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"
#include "slamb/optimizer/detail/adam_passes.hpp"

namespace slamb::detail {

/// Bytes an element of the update that AdamW, LAMB and every warm-up make of a whole gradient.
template <class TrustRatio>
constexpr double adam_step_bytes() noexcept {
  if constexpr (TrustRatio::sums_per_segment == 0)
    return bytes_per_element<update_and_apply<TrustRatio>>();
  else
    return bytes_per_element<update_and_sum<TrustRatio>>() + bytes_per_element<apply_update<TrustRatio>>();
}

/// Bytes an element before that: gathering the gradient, or, on a rank alone, looking whether it is finite.
constexpr double dense_gradient_bytes(int ranks) noexcept {
  return ranks > 1 ? bytes_per_element<gather_gradient>() : bytes_per_element<check_gradient>();
}

/// Bytes an element of the exchange in codes around `Pass`, and of the pass itself: `two_phase_exchange`.
///
/// @param ranks  N
template <class Pass, quantizer Quantizer, error_feedback ErrorFeedback>
constexpr double quantized_step_bytes(int ranks) noexcept {
  constexpr double value = sizeof(float);
  constexpr double code = Quantizer::bits_per_element / 8.0;
  constexpr double error = sizeof(typename error_storage<ErrorFeedback>::type);
  constexpr double worker_error = ErrorFeedback::worker_state ? error : 0.0;
  constexpr double server_error = ErrorFeedback::server_state ? error : 0.0;
  // A scale that must be known before anything is encoded takes a pass of its own.
  constexpr double times = shared_scales<Quantizer>::are_known_first ? 2.0 : 1.0;
  // What was lost is found from the signal, formed once more, and this rank's own codes.
  constexpr bool finds_compression_error = ErrorFeedback::worker_state || requires { Pass::uses_compression_error; };
  using reads = union_of_t<typename Pass::reads, arrays_if<finds_compression_error, typename Pass::signal_reads>>;
  const double per_rank = 1.0 / ranks;

  const double encode = times * (value * Pass::signal_reads::stored + worker_error) + code;
  const double average = times * (code + per_rank * (server_error + value)) + per_rank * code;
  const double keep = ErrorFeedback::server_state ? per_rank * (value + code + server_error) : 0.0;
  const double receive = value * (reads::stored + Pass::writes::stored) + 2.0 * worker_error +
                         (finds_compression_error ? 2.0 : 1.0) * code;
  return encode + average + keep + receive;
}

/// Bytes an element of a payload of what exchanging it by a chain of a sparsifier and a quantizer takes; others, nothing.
///
/// @tparam KeepsApart  what encoding loses is kept beside the payload
template <class Compressor, bool KeepsApart>
constexpr double encoded_payload_bytes([[maybe_unused]] int ranks) noexcept {
  if constexpr (capability::chained<Compressor>)
    return quantized_step_bytes<encoded_payload<KeepsApart>, decltype(Compressor::quantizer), no_error_feedback>(ranks);
  else
    return 0.0;
}

/// Bytes an element of a leader's choice by values that `Pass` forms, on the mean rank, and of reading it; others, nothing.
template <class Pass, class Sparsifier>
constexpr double choice_bytes([[maybe_unused]] int ranks) noexcept {
  constexpr double bit = 1.0 / 8.0;
  if constexpr (data_dependent_sparsifier<Sparsifier>)
    return (sizeof(float) * Pass::signal_reads::stored + 2.0 * bit) / ranks + 3.0 * bit;
  else
    return 0.0;
}

/// The same of a rank alone, whose exchange is the identity.
template <class Pass>
constexpr double own_signal_bytes() noexcept {
  return bytes_per_element<check_signal<Pass>>() + bytes_per_element<pass_with_own_signal<Pass>>();
}

}  // namespace slamb::detail
