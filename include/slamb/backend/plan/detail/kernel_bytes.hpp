// The bytes of memory traffic of each kernel, from the arrays that its pass declares. A plan adds them up.
//
// Elements of each array are counted once for each kernel that reads or writes them. Scales that tiles share, tables, sums of
// tiles and the padding of messages are too few to count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/concepts.hpp"
#include "slamb/core/storage_bytes.hpp"
#include "slamb/detail/kernel/active.hpp"
#include "slamb/detail/kernel/choose.hpp"
#include "slamb/detail/kernel/parts.hpp"
#include "slamb/detail/kernel/place_payload.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/detail/kernel/segments.hpp"
#include "slamb/detail/kernel/two_phase.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail {

/// The model of a plan, as counts see it.
struct counted_model {
  plan::storage_bytes stored{};          ///< how its arrays are stored
  const layout* tensors = nullptr;       ///< null until the optimizer has allocated its memory
  const layout* parts = nullptr;         ///< this rank's parts of the tensors, if it updates no others
  const tile* tiles_of_parts = nullptr;  ///< where their table would be
  double selectable = 0.0;               ///< elements of tensors that are not sent whole
  double payload = 0.0;                  ///< elements of the last payload of selected elements

  /// All elements of a kernel's view. A view without `first_tile` has one tensor of its own, a payload.
  double elements(const model_view& view) const {
    return static_cast<double>(view.first_tile == nullptr ? view.segments[0].size : tensors->elements());
  }
  /// Those of some tiles.
  double elements(const model_view& view, tile_range tiles) const {
    if (view.first_tile == nullptr) return elements(view);
    const bool is_of_parts = parts != nullptr && view.tiles == tiles_of_parts;
    return static_cast<double>((is_of_parts ? parts : tensors)->elements_of(tiles));
  }
  plan::storage_bytes of_gradient_in(const model_view& view) const noexcept {
    return view.gradient_is_exchanged ? stored.with_exchanged_gradient() : stored;
  }
};

inline constexpr double bytes_of_float = sizeof(float);
inline constexpr double bytes_of_bit = 1.0 / 8.0;

/// Bytes on the wire an element: its code, and its share in the scale of a block.
template <quantizer Quantizer>
double code_bytes(const Quantizer& quantizer) {
  constexpr double code = Quantizer::bits_per_element / 8.0;
  const scale_granularity groups = granularity_of(quantizer);
  return groups.of == scale_granularity::blocks ? code + static_cast<double>(groups.bytes) / groups.block : code;
}

template <class Storage>
inline constexpr double bytes_of_error = std::is_same_v<Storage, no_storage> ? 0.0 : sizeof(Storage);

/// Elements of a quantized exchange that are sent as codes, and as floats.
struct sent_elements {
  double coded, dense;
};
/// Among `some` of all elements of the exchange, in proportion.
inline sent_elements sent_among(double some, const counted_model& model, const model_view& view,
                                const wire_view& wire) {
  const double all = model.elements(view);
  const double dense = all > 0.0 ? some / all * static_cast<double>(wire.dense_elements) : 0.0;
  return {some - dense, dense};
}
template <class Kernel>
sent_elements sent_in(const Kernel& k, const counted_model& model) {
  return sent_among(model.elements(k.view, k.tiles), model, k.view, k.wire);
}

/// Kernels that are not listed work on tables and sums of tiles. A kernel of a user's own may have an overload beside it.
template <class Kernel>
double bytes_of(const Kernel& /*kernel*/, const counted_model& /*model*/) {
  return 0.0;
}

template <class Pass, class Precision>
double bytes_of(const run_pass<Pass, Precision>& k, const counted_model& model) {
  return model.elements(k.view, k.tiles) * bytes_per_element<Pass>(model.of_gradient_in(k.view));
}

template <class T>
double bytes_of(const sum_squares<T>& k, const counted_model& model) {
  return model.elements(k.view, k.tiles) * static_cast<double>(sizeof(T));
}

template <class Array, class Numbers>
double bytes_of(const mark_active<Array, Numbers>& k, const counted_model& model) {
  double numbers = 0.0;
  if constexpr (!std::is_void_v<Array>)
    if (exists(k.numbers)) numbers = bytes_read<Array>(model.stored);
  return sent_in(k, model).coded * (numbers + (k.active == nullptr ? 0.0 : bytes_of_bit));
}

// ----------------------------------------------------------------------------------------------------- selected elements

/// True if a selection is read from memory, a bit for each element.
template <class Selection>
inline constexpr bool is_bitmap = std::is_same_v<Selection, bitmap_selection>;

template <class Pass, class Selection, class Precision>
double bytes_of(const run_selected<Pass, Selection, Precision>& k, const counted_model& model) {
  const double elements = model.elements(k.view, k.tiles);
  double bytes = elements * bytes_per_element<Pass>(model.of_gradient_in(k.view));
  if constexpr (is_bitmap<resolved_t<Selection>>) bytes += elements * bytes_of_bit;
  // Ages are read and written where the received values are.
  if constexpr (Pass::needs_discount && !capability::has_age<resolved_t<Selection>>)
    bytes += model.selectable * static_cast<double>(sizeof(stored_age_t<resolved_t<Selection>>)) *
             (Pass::receives ? 2.0 : 1.0);
  double planes = static_cast<double>(Pass::packs::stored) + (Pass::receives ? 1.0 : 0.0);
  if constexpr (requires { Pass::receives_compression_error; })
    if (k.payload.plane[1] != nullptr) planes += 1.0;
  return bytes + model.payload * bytes_of_float * planes;
}

template <class Pass>
double bytes_of(const run_packed<Pass>& /*k*/, const counted_model& model) {
  return model.payload * bytes_per_element<Pass>();
}

template <class Selection>
double bytes_of(const count_selected_elements<Selection>& k, const counted_model& model) {
  return is_bitmap<resolved_t<Selection>> ? model.elements(k.view, {0, k.tiles}) * bytes_of_bit : 0.0;
}

template <class Pass, class Compressor, class Precision>
double bytes_of(const choose_elements<Pass, Compressor, Precision>& k, const counted_model& model) {
  return model.selectable *
         (bytes_of_list<typename Pass::signal_reads>::read(model.of_gradient_in(k.view)) + bytes_of_bit);
}

// ---------------------------------------------------------------------------------------------------- quantized exchanges

template <encode_mode Work, class Storage, class Pass, class Quantizer, class Precision>
double bytes_of(const send_signal<Work, Storage, Pass, Quantizer, Precision>& k, const counted_model& model) {
  const sent_elements of = sent_in(k, model);
  const double signal = bytes_of_list<typename Pass::signal_reads>::read(model.of_gradient_in(k.view));
  const double code = Work == encode_mode::statistics ? 0.0 : code_bytes(k.quantizer);
  return of.coded * (signal + bytes_of_error<Storage> + code) +
         (Work == encode_mode::codes ? 0.0 : of.dense * (signal + bytes_of_float));
}

/// Reads the codes of N ranks for this rank's chunk. The chunk is counted as 1/N of the elements, as on the mean rank.
template <encode_mode Work, class Storage, class Quantizers>
double bytes_of(const average_signals<Work, Storage, Quantizers>& k, const counted_model& model) {
  const double coded = sent_among(model.elements(k.view), model, k.view, k.wire).coded;
  const double code = Work == encode_mode::statistics ? 0.0 : code_bytes(server_quantizer(k.quantizers));
  return coded * (code_bytes(worker_quantizer(k.quantizers)) +
                  (bytes_of_float + bytes_of_error<Storage> + code) / static_cast<double>(k.wire.ranks));
}

template <class Storage, class ServerStorage, class Pass, class Quantizers, class Precision>
double bytes_of(const receive_mean<Storage, ServerStorage, Pass, Quantizers, Precision>& k,
                const counted_model& model) {
  // The compression error is found from the signal, formed once more, and this rank's own codes.
  constexpr double error = bytes_of_error<Storage>, server_error = bytes_of_error<ServerStorage>;
  constexpr bool finds_error = error > 0.0 || requires { Pass::uses_compression_error; };
  using reads = union_of_t<typename Pass::reads, arrays_if<finds_error, typename Pass::signal_reads>>;
  const sent_elements of = sent_in(k, model);
  const plan::storage_bytes stored = model.of_gradient_in(k.view);
  const double mean_code = code_bytes(server_quantizer(k.quantizers));
  const double written = bytes_of_list<typename Pass::writes>::written(stored);
  const double keep = server_error > 0.0 ? (bytes_of_float + mean_code + server_error) / k.wire.ranks : 0.0;
  return of.coded * (bytes_of_list<reads>::read(stored) + written + 2.0 * error + mean_code + keep +
                     (finds_error ? code_bytes(worker_quantizer(k.quantizers)) : 0.0)) +
         of.dense * (bytes_of_list<typename Pass::reads>::read(stored) + written + bytes_of_float);
}

// ------------------------------------------------------------------------------------------------- parts of the model

template <class Quantizer>
double bytes_of(const average_parts<Quantizer>& k, const counted_model& model) {
  const double own = model.elements(k.view, {0, k.tiles}), dense = static_cast<double>(k.wire.dense_elements);
  return (own - dense) * k.wire.ranks * code_bytes(k.quantizer) + (own + dense) * bytes_of_float;
}

template <class Storage, class Pass, class Quantizer, class Precision>
double bytes_of(const keep_worker_error<Storage, Pass, Quantizer, Precision>& k, const counted_model& model) {
  return sent_in(k, model).coded * (bytes_of_list<typename Pass::signal_reads>::read(model.of_gradient_in(k.view)) +
                                    2.0 * bytes_of_error<Storage> + code_bytes(k.quantizer));
}

template <encode_mode Work, class Quantizer, class Precision>
double bytes_of(const send_parts<Work, Quantizer, Precision>& k, const counted_model& model) {
  const double own = model.elements(k.view, {0, k.tiles}) - static_cast<double>(k.wire.dense_elements);
  const double code = Work == encode_mode::statistics ? 0.0 : code_bytes(k.quantizer);
  const bool reads_stored = k.exact == nullptr || !is_lossless<Quantizer>;
  return own * ((reads_stored ? model.stored.data : 0.0) + (k.exact == nullptr ? 0.0 : bytes_of_float) + code);
}

template <class Quantizer, class Precision>
double bytes_of(const receive_parts<Quantizer, Precision>& k, const counted_model& model) {
  return sent_in(k, model).coded * (code_bytes(k.quantizer) + model.stored.data * (is_lossless<Quantizer> ? 1.0 : 2.0));
}

template <class Storage, class Pass, class Quantizer, class Precision>
double bytes_of(const measure_error<Storage, Pass, Quantizer, Precision>& k, const counted_model& model) {
  return sent_in(k, model).coded * (bytes_of_list<typename Pass::signal_reads>::read(model.of_gradient_in(k.view)) +
                                    bytes_of_error<Storage> + code_bytes(k.quantizer));
}

}  // namespace slamb::detail
