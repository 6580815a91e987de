// Bytes of memory traffic of a step, by the counts of its recipe's passes. Bytes that the communicator moves are not counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "slamb/slamb.hpp"
#include "typed_bytes.hpp"

namespace bench {

/// The timed steps.
struct steps_taken {
  std::uint64_t last = 0;           ///< t of the last step
  std::string phase{};              ///< the phase of all steps
  double averagings = 0.0;          ///< averagings of the parameters over ranks, per step
  double exchanges_of_codes = 0.0;  ///< exchanges of codes, per step
  int ranks = 1;
};

/// Fractions of the model: elements that SLAMB exchanges at a step, and elements in tensors that are not exchanged dense.
struct payload_fractions {
  double sent = 0.0;
  double selectable = 0.0;
};

/// Counts the elements that `options.compressor` selects at step t, and the elements that are always exchanged dense.
template <class Options>
payload_fractions payload_at(std::uint64_t t, std::span<const slamb::parameter> tensors, const Options& options) {
  slamb::detail::layout layout(tensors, 0.0, true);
  const auto& sparsifier = slamb::detail::sparsifier_of(options.compressor);
  std::uint64_t sent = 0, selectable = 0;
  for (slamb::detail::segment& s : layout.segments()) {
    s.dense = slamb::detail::is_sent_dense(s.size, s.one_dimensional, !s.dense, options.dense_below);
    if (!s.dense) selectable += s.size;
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
  return {static_cast<double>(sent) / elements, static_cast<double>(selectable) / elements};
}

/// What types add to the bytes of a gradient that all ranks need whole, and of Adam's update by it.
/// @param is_quantized  the gradient is exchanged by the DenseCompressor
template <class TrustRatio, class DenseCompressor = slamb::no_compressor>
double added_to_dense_step(const storage_bytes& stored, int ranks, bool checks = true, bool is_quantized = false) {
  using gradient = slamb::detail::dense_gradient_passes;
  using passes = slamb::detail::adam_passes<TrustRatio>;
  const storage_bytes updated = ranks > 1 || is_quantized ? stored.with_exchanged_gradient() : stored;
  double exchanged = ranks > 1 ? added_by_types<typename gradient::gather>(stored)
                     : checks  ? added_by_types<typename gradient::check>(stored)
                               : 0.0;
  if constexpr (slamb::quantizer<DenseCompressor>)
    if (is_quantized)
      exchanged = added_to_exchange<slamb::detail::decode_gradient, slamb::no_error_feedback, DenseCompressor>(stored);
  return exchanged + added_by_types<typename passes::update>(updated) +
         (passes::needs_norms ? added_by_types<typename passes::apply>(updated) : 0.0);
}

// Each count is the library's, for floats, and what the types of the tensors add to it.

/// Bytes per element and step of AdamW and LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_lamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  const bool checks = optimizer.options().skip_non_finite;
  return slamb::detail::dense_gradient_passes::memory_bytes(taken.ranks, checks) +
         slamb::detail::adam_passes<TrustRatio>::memory_bytes() +
         added_to_dense_step<TrustRatio>(storage_of<Backend>(tensors), taken.ranks, checks);
}

/// SLAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(const slamb::basic_slamb<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  using passes = slamb::detail::slamb_passes<TrustRatio>;
  using sparsifier = std::remove_cvref_t<decltype(slamb::detail::sparsifier_of(optimizer.options().compressor))>;
  const payload_fractions payload = payload_at(taken.last, tensors, optimizer.options());
  const storage_bytes stored = storage_of<Backend>(tensors);
  double chosen = 0.0;  // of the values to choose from, on the leader
  if constexpr (slamb::data_dependent_sparsifier<sparsifier>)
    chosen = added_to_reads<typename passes::choose::signal_reads>(stored) / taken.ranks;
  return passes::memory_bytes(optimizer.options().compressor, taken.ranks, payload.sent, payload.selectable,
                              taken.averagings) +
         chosen + added_by_types<typename passes::form, typename passes::apply>(stored) +
         taken.averagings * added_by_types<typename passes::gather, typename passes::scatter>(stored);
}

/// 1-bit Adam and 1-bit LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend, class WarmUp,
          class DenseCompressor>
double counted_bytes(const slamb::basic_one_bit<Compressor, ErrorFeedback, TrustRatio, Communicator, Backend, WarmUp,
                                                DenseCompressor>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  const storage_bytes stored = storage_of<Backend>(tensors);
  const bool is_quantized = taken.exchanges_of_codes > 0.0;
  if (taken.phase == "warm-up")
    return slamb::detail::gradient_exchange_bytes<slamb::no_error_feedback>(optimizer.options().dense_compressor,
                                                                            taken.ranks, is_quantized, true, false) +
           slamb::detail::adam_passes<TrustRatio>::memory_bytes() +
           added_to_dense_step<TrustRatio, DenseCompressor>(stored, taken.ranks, true, is_quantized);
  using passes = slamb::detail::one_bit_passes<TrustRatio>;
  return passes::template memory_bytes<ErrorFeedback>(optimizer.options().compressor, taken.ranks, is_quantized) +
         added_to_exchange<typename passes::receive, ErrorFeedback, Compressor>(stored, is_quantized) +
         (passes::needs_norms ? added_by_types<typename passes::apply>(stored) : 0.0);
}

/// 0/1 Adam: steps that exchanged codes, and steps that did not.
template <class Compressor, class ErrorFeedback, class Communicator, class Backend, class VarianceSchedule,
          class LocalSchedule>
double counted_bytes(const slamb::basic_zero_one_adam<Compressor, ErrorFeedback, Communicator, Backend,
                                                      VarianceSchedule, LocalSchedule>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  using passes = slamb::detail::zero_one_passes;
  const auto& quantizer = optimizer.options().compressor;
  const storage_bytes stored = storage_of<Backend>(tensors);
  const auto mixed = [part = taken.exchanges_of_codes](double with_codes, double without) {
    return part * with_codes + (1.0 - part) * without;
  };
  if (taken.phase == "variance")
    return mixed(passes::gradient_memory_bytes<ErrorFeedback>(quantizer, taken.ranks, true) +
                     added_to_exchange<passes::receive, ErrorFeedback, Compressor>(stored),
                 passes::refresh_memory_bytes(optimizer.options().dense_compressor, taken.ranks, false) +
                     added_to_dense_step<slamb::unit_trust_ratio>(stored, taken.ranks));
  const bool is_local = taken.ranks > 1 || optimizer.options().compress_single_rank;
  return mixed(passes::update_memory_bytes<ErrorFeedback>(quantizer, taken.ranks, true) +
                   added_to_exchange<passes::receive_update, ErrorFeedback, Compressor>(stored),
               passes::local_memory_bytes(is_local) + added_by_types<passes::check>(stored) +
                   (is_local ? added_by_types<passes::local>(stored) : added_by_types<passes::single>(stored)));
}

}  // namespace bench
