// Bytes of memory traffic of a step, by the counts of its recipe's passes. Bytes that the communicator moves are not counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "slamb/slamb.hpp"

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

/// An optimizer of this recipe.
template <class Communicator, class Recipe>
using made_by = slamb::detail::optimizer_over<Recipe, Communicator>;

/// Bytes per element and step of AdamW and LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend>
double counted_bytes(
    const made_by<Communicator, slamb::detail::lamb_recipe<Compressor, ErrorFeedback, TrustRatio, Backend>>& optimizer,
    std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  static_assert(std::is_same_v<Compressor, slamb::no_compressor>,
                "bench: a compressed gradient has other counts, which no benchmark needs yet");
  return slamb::detail::gradient_step_bytes<TrustRatio, ErrorFeedback>(optimizer.options().compressor, taken.ranks,
                                                                       false, optimizer.options().skip_non_finite,
                                                                       false, slamb::plan::stored_by<Backend>(tensors));
}

/// SLAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend,
          class ParameterSync>
double counted_bytes(const made_by<Communicator, slamb::detail::slamb_recipe<Compressor, ErrorFeedback, TrustRatio,
                                                                             Backend, ParameterSync>>& optimizer,
                     std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  using passes = slamb::detail::slamb_passes<TrustRatio>;
  const payload_fractions payload = payload_at(taken.last, tensors, optimizer.options());
  const slamb::plan::storage_bytes stored = slamb::plan::stored_by<Backend>(tensors);
  return passes::memory_bytes(optimizer.options().compressor, taken.ranks, payload.sent, payload.selectable, stored) +
         taken.averagings * slamb::detail::outer_step_bytes(optimizer.options().parameter_sync, taken.ranks, stored);
}

/// 1-bit Adam and 1-bit LAMB.
template <class Compressor, class ErrorFeedback, class TrustRatio, class Communicator, class Backend, class WarmUp,
          class DenseCompressor>
double counted_bytes(
    const made_by<Communicator, slamb::detail::one_bit_recipe<Compressor, ErrorFeedback, TrustRatio, Backend, WarmUp,
                                                              DenseCompressor>>& optimizer,
    std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  const slamb::plan::storage_bytes stored = slamb::plan::stored_by<Backend>(tensors);
  const bool is_quantized = taken.exchanges_of_codes > 0.0;
  if (taken.phase == "warm-up")
    return slamb::detail::gradient_step_bytes<TrustRatio, slamb::no_error_feedback>(
        optimizer.options().dense_compressor, taken.ranks, is_quantized, true, false, stored);
  using passes = slamb::detail::one_bit_passes<TrustRatio>;
  return passes::template memory_bytes<ErrorFeedback>(optimizer.options().compressor, taken.ranks, is_quantized,
                                                      stored);
}

/// 0/1 Adam: steps that exchanged codes, and steps that did not.
template <class Compressor, class ErrorFeedback, class Communicator, class Backend, class VarianceSchedule,
          class LocalSchedule>
double counted_bytes(
    const made_by<Communicator, slamb::detail::zero_one_adam_recipe<Compressor, ErrorFeedback, Backend,
                                                                    VarianceSchedule, LocalSchedule>>& optimizer,
    std::span<const slamb::parameter> tensors, const steps_taken& taken) {
  using passes = slamb::detail::zero_one_passes;
  const auto& quantizer = optimizer.options().compressor;
  const slamb::plan::storage_bytes stored = slamb::plan::stored_by<Backend>(tensors);
  const auto mixed = [part = taken.exchanges_of_codes](double with_codes, double without) {
    return part * with_codes + (1.0 - part) * without;
  };
  if (taken.phase == "variance")
    return mixed(passes::gradient_memory_bytes<ErrorFeedback>(quantizer, taken.ranks, true, stored),
                 passes::refresh_memory_bytes(optimizer.options().dense_compressor, taken.ranks, false, false, stored));
  const bool is_local = taken.ranks > 1 || optimizer.options().compress_single_rank;
  return mixed(passes::update_memory_bytes<ErrorFeedback>(quantizer, taken.ranks, true, stored),
               passes::local_memory_bytes(is_local, stored));
}

}  // namespace bench
