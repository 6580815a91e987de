// The selection of a step, and the exchange of its payload: as floats by one all_reduce, or quantized by two collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/memory_traffic.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"

namespace slamb::detail {

/// The selection of a bitmap: bit i is for element i of the state arrays. The optimizer stores ages.
struct bitmap_selection {
  using age_type = std::uint16_t;  // an element may be left out for any number of steps

  const std::uint16_t* bits = nullptr;  ///< [state elements / 16]

  SLAMB_HOST_DEVICE bool selects(coordinate c) const {
    const std::uint64_t i = c.state + c.index;
    return ((bits[i / 16] >> (i % 16)) & 1U) != 0;
  }

  /// A bit for each of `count` ≤ 16 elements from c on: 1 if selected.
  SLAMB_HOST_DEVICE std::uint32_t word(coordinate c, std::uint32_t count) const {
    const std::uint64_t i = c.state + c.index;
    const auto from = static_cast<std::uint32_t>(i % 16);
    std::uint32_t all = static_cast<std::uint32_t>(bits[i / 16]) >> from;
    if (from + count > 16) all |= static_cast<std::uint32_t>(bits[i / 16 + 1]) << (16 - from);
    return all & ((1U << count) - 1U);
  }

  template <class Visit>
  void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
    for (const std::uint64_t end = c.index + count; c.index != end; ++c.index)
      visit(c.index, std::uint64_t{1}, selects(c) ? 0U : 1U);
  }

  bool fill(coordinate c, std::uint32_t count, capability::staleness_discounts /*table*/, std::uint16_t* to,
            float* /*none*/) const {
    for (std::uint32_t i = 0; i < count; i += 16, c.index += 16)
      to[i / 16] = static_cast<std::uint16_t>(word(c, std::min(count - i, 16U)));
    return true;
  }
};
static_assert(capability::has_fill<bitmap_selection>);

/// The selections of a sparsifier.
template <class Sparsifier>
struct selection_of {
  using type = decltype(std::declval<const Sparsifier&>().at(std::uint64_t{1}));
};
template <data_dependent_sparsifier Sparsifier>
struct selection_of<Sparsifier> {
  using type = bitmap_selection;
};

/// Bytes of memory traffic an element, on the mean rank, of choosing by the values that `Pass` forms: the leader forms them and
/// writes bits, which all ranks read. 0 for other sparsifiers.
template <class Pass, class Sparsifier>
constexpr double choice_memory_bytes([[maybe_unused]] int ranks,
                                     [[maybe_unused]] const plan::storage_bytes& stored) noexcept {
  constexpr double bit = 1.0 / 8.0;
  if constexpr (data_dependent_sparsifier<Sparsifier>)
    return (bytes_of_list<typename Pass::signal_reads>::read(stored) + 2.0 * bit) / ranks + 3.0 * bit;
  else
    return 0.0;
}

/// Bytes of memory traffic of stored ages, an element of tensors from which the sparsifier selects. 0 if the selection computes
/// ages.
template <class Sparsifier>
constexpr double age_memory_bytes() noexcept {
  using selection_type = typename selection_of<Sparsifier>::type;
  return capability::has_age<selection_type> ? 0.0 : 2.0 * sizeof(stored_age_t<selection_type>);
}

/// Selects by the step alone.
template <class Sparsifier, class Context>
class selector {
  static constexpr bool is_stored =
      !Context::executor_type::is_synchronous && capability::selects_on_device<Sparsifier>;

 public:
  using selection_type = decltype(std::declval<const Sparsifier&>().at(std::uint64_t{1}));
  /// The result of `select`: the selection, or a pointer to it.
  using selected_type = std::conditional_t<is_stored, stored_selection<selection_type>, selection_type>;

  void plan(Context& context) {
    if constexpr (is_stored) stored_ = context.memory.template plan<selection_type>("choice", 1);
  }

  /// The function that makes the selection on a device, which knows the number of the step; for an executor to invoke before the
  /// selection is used.
  auto finds(const Sparsifier& sparsifier, Context& context) const {
    if constexpr (!is_stored)
      return nothing_to_do{};
    else if constexpr (requires { sparsifier.all_steps(); })
      return storing(sparsifier.all_steps(), context);
    else
      return storing(sparsifier, context);
  }

  /// The selection of this step.
  /// @param pass  forms the values, for data-dependent sparsifiers
  template <class Pass, class View>
  selected_type select(const Sparsifier& sparsifier, Context& context, const View& /*view*/,
                       const Pass& /*pass*/) const {
    if constexpr (requires { sparsifier.require_ready(std::uint64_t{}); })
      sparsifier.require_ready(context.tensors.elements());
    if constexpr (is_stored)
      return {context.memory.view(stored_).data()};
    else
      return sparsifier.at(
          context.this_step("the compressor's selection follows the step number, which a capture does not know"));
  }

 private:
  template <class Steps>
  store_selection<Steps, selection_type> storing(const Steps& steps, Context& context) const {
    return {steps, &context.record()->taken, context.memory.view(stored_).data()};
  }

  region<selection_type> stored_;
};

/// Selects by value: at step t rank (t − 1) mod N chooses by its own values, and broadcasts a bitmap.
template <data_dependent_sparsifier Sparsifier, class Context>
class selector<Sparsifier, Context> {
 public:
  using selection_type = bitmap_selection;
  using selected_type = bitmap_selection;

  void plan(Context& context) {
    bits_ = context.memory.template plan<std::uint16_t>("choice", (context.tensors.state_elements() + 15) / 16);
  }

  static nothing_to_do finds(const Sparsifier& /*sparsifier*/, Context& /*context*/) { return {}; }

  template <class Pass, class View>
  selection_type select(const Sparsifier& sparsifier, Context& context, const View& view, const Pass& pass) const {
    const std::span<std::uint16_t> bits = context.memory.view(bits_);
    const int leader = static_cast<int>(
        (context.this_step("the rank that chooses follows from the step number, which a capture does not know") - 1) %
        static_cast<std::uint64_t>(context.ranks.size()));
    if (context.ranks.rank() == leader) {
      context.executor.clear(std::as_writable_bytes(bits));
      // Nothing is chosen in tiles with values that are not finite. The payload's overflow flag will skip the step.
      context.executor.choose(pass, sparsifier, view, context.all_tiles(), bits.data());
    }
    if (context.ranks.size() > 1)
      context.ranks.broadcast(std::as_writable_bytes(bits), leader, context.executor.stream());
    return {bits.data()};
  }

 private:
  region<std::uint16_t> bits_;
};

/// The most elements sent at any step, of dense tensors and of tensors from which the sparsifier selects.
template <class Sparsifier>
std::uint64_t largest_payload_of(const Sparsifier& sparsifier, std::span<const segment> tensors) {
  std::uint64_t payload = 1;  // at least one element is always sent
  for (const segment& s : tensors) payload += s.dense ? s.size : largest_payload_of(sparsifier, s.size);
  return payload;
}

/// Computes the place of each tile's selected elements in the payload, and returns the part of `capacity` that they take, at least
/// one element. On a device, a payload of constant size takes all of `capacity`, so that the host need not wait for its exact size;
/// the pass that packs it sets the rest to 0 (payload_view::capacity). If a comparison is due, the selection becomes a part of
/// this step's fingerprint.
template <class Sparsifier, class Context, class Selection>
std::span<float> scan_payload_offsets(Context& context, const Selection& selection,
                                      std::span<std::uint64_t> tile_offsets, std::span<float> capacity) {
  if constexpr (!Context::executor_type::is_synchronous && payload_is_constant<Sparsifier>) {
    context.executor.scan_payload_offsets_in(context.view(), selection, tile_offsets, capacity.size(),
                                             &context.record()->skip);
    context.agreement.hash_selection(context, selection, tile_offsets);
    return capacity;
  }
  const std::uint64_t size =
      context.executor.scan_payload_offsets(context.view(), selection, tile_offsets, context.ranks.wrapped());
  if (size > capacity.size())
    throw error("slamb: the compressor selected " + std::to_string(size) + " elements, but said that at most " +
                std::to_string(capacity.size()) + " are selected at any step");
  context.agreement.hash_selection(context, selection, tile_offsets);
  const std::span<float> sent = capacity.first(std::max<std::uint64_t>(size, 1));
  if (size == 0) context.executor.write(sent.data(), 0.0F);
  return sent;
}

/// The exchange of floats: the payload becomes its sum over ranks.
template <class Compressor, class Context>
class payload_exchange {
 public:
  explicit payload_exchange(const Compressor& /*compressor*/) {}

  /// @param largest  most elements of a payload
  void plan(Context& /*context*/, std::uint64_t /*largest*/) {}

  /// The factor that makes the exchanged payload a mean.
  static float scale(const Context& context) noexcept { return 1.0F / static_cast<float>(context.ranks.size()); }

  /// All ranks skip the step if any of them has found a value that is not finite.
  ///
  /// @param lost  [payload] untouched, since nothing is lost
  void exchange(std::span<float> payload, float* /*lost*/, Context& context) const {
    exchange(payload, payload.size(), context);
  }
  /// @param whole  floats of the complete payload; `payload` is its first part, and the rest has been exchanged before
  void exchange(std::span<float> payload, std::uint64_t whole, Context& context) const {
    all_reduce_payload(payload, whole, context);
  }
};

namespace array {

/// The compression error of a payload, if it is stored apart.
struct payload_loss : state_array {
  template <class T>
  struct field {
    T payload_loss;
  };
};

}  // namespace array

/// The payload as a signal, which becomes the received mean. This rank's compression error is added to it, or stored apart.
template <bool KeepsApart>
struct encoded_payload : pass_without_constants {
  using signal_reads = arrays<array::exchanged>;
  using reads = arrays<>;
  using writes = union_of_t<arrays<array::exchanged>, arrays_if<KeepsApart, arrays<array::payload_loss>>>;
  static constexpr int sums = 0;
  static constexpr bool uses_compression_error = true;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.exchanged);
    return e.exchanged;
  }

  // docs/algorithms/compressors.md (17), (18)
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    if constexpr (KeepsApart)
      e.payload_loss = e.compression_error;
    else
      e.exchanged = e.exchanged + e.compression_error;
  }
};

/// Bytes of memory traffic an element of a payload, for its exchange by a chain; 0 for other sparsifiers.
///
/// @tparam KeepsApart  the compression error is kept beside the payload
template <bool KeepsApart, class Compressor>
double payload_memory_bytes([[maybe_unused]] const Compressor& compressor, [[maybe_unused]] int ranks) {
  if constexpr (capability::chained<Compressor>)
    return ranks > 1
               ? exchange_memory_bytes<encoded_payload<KeepsApart>, no_error_feedback>(compressor.quantizer, ranks)
               : 0.0;
  else
    return 0.0;
}

/// The exchange of quantized elements. With one rank it is the identity.
template <capability::chained Compressor, class Context>
class payload_exchange<Compressor, Context> {
  using quantizer_type = decltype(Compressor::quantizer);
  using executor_type = typename Context::executor_type;
  using no_storage = typename executor_type::no_error_storage;

 public:
  explicit payload_exchange(const Compressor& compressor) : codes_(compressor.quantizer) {}

  void plan(Context& context, std::uint64_t largest) {
    if (context.ranks.size() == 1) return;
    lay_out(context, largest);  // no payload has more pieces, codes and tiles than the largest may have
    const std::uint64_t tiles = largest / layout::tile_size + static_cast<std::uint64_t>(context.ranks.size()) + 1;
    payload_tiles_.reserve(tiles);
    counts_.reserve(tiles);
    tile_table_ = context.memory.template plan<tile>("tables", tiles);
    count_table_ = context.memory.template plan<std::uint64_t>("tables", tiles);
    codes_.tables().plan(context, tiles);
    segment_table_ = context.memory.template plan<segment>("tables", 1);
    statistic_ = context.memory.template plan<double>("sums", tiles);
    buffer_ = context.memory.template plan<std::byte>("payload", codes_.buffer_bytes());
  }

  static float scale(const Context& /*context*/) noexcept { return 1.0F; }

  /// Exchanges the payload, and adds the compression error to the mean. A quantized payload has no part that was exchanged
  /// before.
  void exchange(std::span<float> payload, std::uint64_t /*whole*/, Context& context) {
    exchange(payload, nullptr, context);
  }
  /// @param compression_error  [payload] receives the compression error of this rank's payload; null: it is added to the mean
  void exchange(std::span<float> payload, float* compression_error, Context& context) {
    if (context.ranks.size() == 1) {
      if (compression_error != nullptr)
        context.executor.clear(std::as_writable_bytes(std::span(compression_error, payload.size())));
      return context.executor.invoke(skip_if_not_finite{context.record()});
    }
    if (payload.size() != uploaded_size_) upload(context, payload.size());
    const view_in<> payload_alone{{.segments = context.memory.view(segment_table_).data(),
                                   .tiles = context.memory.view(tile_table_).data(),
                                   .exchanged = payload.data(),
                                   .skip = context.view().skip}};
    if (compression_error != nullptr)
      exchange_as(encoded_payload<true>{},
                  state_view<view_in<>, arrays<array::payload_loss>>{payload_alone, {compression_error}}, context);
    else
      exchange_as(encoded_payload<false>{}, payload_alone, context);
  }

 private:
  template <class Pass, class View>
  void exchange_as(const Pass& pass, const View& model, Context& context) {
    const wire_view wire = codes_.view(context, context.memory.view(buffer_));
    double* const statistic = context.memory.view(statistic_).data();
    context.executor.invoke(codes_.starts(wire, context.record()));
    codes_.send(pass, context, model, wire, context.memory.view(count_table_).data(), statistic);
    if (!context.is_skipped_on_host())
      codes_.receive(pass, context.executor, model, wire, {0, payload_tiles_.size()}, nullptr);
  }

  void upload(Context& context, std::uint64_t size) {
    lay_out(context, size);
    const segment whole{.size = size};
    context.executor.upload(std::span<const segment>(&whole, 1), context.memory.view(segment_table_));
    context.executor.upload(std::span<const tile>(payload_tiles_), context.memory.view(tile_table_));
    context.executor.upload(std::span<const std::uint64_t>(counts_), context.memory.view(count_table_));
    codes_.tables().upload(context);
    uploaded_size_ = size;
  }

  // The payload as one signal of one tensor.
  void lay_out(const Context& context, std::uint64_t size) {
    const wire_tensor payload{size, true};
    codes_.lay_out({&payload, 1}, context.ranks.size(), context.ranks.rank());
    payload_tiles_.clear();
    counts_.clear();
    for (const wire_piece& piece : codes_.wire().pieces())
      for (std::uint64_t done = 0; done < piece.count; done += layout::tile_size) {
        const std::uint64_t count = std::min<std::uint64_t>(layout::tile_size, piece.count - done);
        payload_tiles_.push_back({piece.first + done, 0, static_cast<std::uint32_t>(count)});
        counts_.push_back(count);
      }
  }

  two_phase_exchange<quantizer_type, executor_type, no_storage, no_storage> codes_;
  std::vector<tile> payload_tiles_;
  std::vector<std::uint64_t> counts_;  // [tiles] elements
  std::uint64_t uploaded_size_ = 0;    // size of the payload for which the tables are
  region<tile> tile_table_;
  region<std::uint64_t> count_table_;
  region<segment> segment_table_;
  region<double> statistic_;
  region<std::byte> buffer_;
};

}  // namespace slamb::detail
