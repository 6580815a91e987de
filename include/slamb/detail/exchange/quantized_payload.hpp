// The payload of a sparse exchange as codes of a quantizer, by two collectives: one signal of one tensor, whose size may change
// from step to step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/exchange/quantized.hpp"
#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/error_feedback/no_error_feedback.hpp"

namespace slamb::detail {

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

/// The exchange of a payload's mean by a quantizer. With one rank it is the identity.
///
/// @tparam KeepsApart  the compression error is stored apart, and not added to the mean
template <quantizer Quantizer, bool KeepsApart, class Context>
class quantized_payload {
 public:
  explicit quantized_payload(const Quantizer& quantizer) : codes_(quantizer) {}

  void plan(Context& context, std::uint64_t largest) {
    if (context.ranks.size() == 1) return;
    lay_out(context, largest);  // no payload has more pieces, codes and tiles than the largest may have
    const std::uint64_t tiles = largest / layout::tile_size + static_cast<std::uint64_t>(context.ranks.size()) + 1;
    if (!context.is_plan()) {
      payload_tiles_.reserve(tiles);
      counts_.reserve(tiles);
    }
    tile_table_ = context.memory.template plan<tile>("tables", tiles);
    count_table_ = context.memory.template plan<std::uint64_t>("tables", tiles);
    codes_.plan_tables(context, tiles);
    segment_table_ = context.memory.template plan<segment>("tables", 1);
    statistic_ = context.memory.template plan<double>("sums", tiles);
    buffer_ = context.memory.template plan<std::byte>("payload", codes_.buffer_bytes());
  }

  /// The payload becomes its mean.
  /// @param compression_error  [payload] receives the compression error of this rank's payload, if it is kept apart
  void exchange(std::span<float> payload, [[maybe_unused]] float* compression_error, Context& context) {
    if (context.ranks.size() == 1) {
      if constexpr (KeepsApart)
        context.launcher.clear(std::as_writable_bytes(std::span(compression_error, payload.size())));
      return context.invoke(skip_if_not_finite{context.record()});
    }
    if (payload.size() != uploaded_size_) upload(context, payload.size());
    const view_in<> payload_alone{{.segments = context.memory.view(segment_table_).data(),
                                   .tiles = context.memory.view(tile_table_).data(),
                                   .exchanged = payload.data(),
                                   .skip = context.view().skip}};
    if constexpr (KeepsApart)
      exchange_as(state_view<view_in<>, arrays<array::payload_loss>>{payload_alone, {compression_error}}, context);
    else
      exchange_as(payload_alone, context);
  }

 private:
  template <class View>
  void exchange_as(const View& model, Context& context) {
    const encoded_payload<KeepsApart> pass{};
    const wire_view wire = codes_.view(context, context.memory.view(buffer_));
    double* const statistic = context.memory.view(statistic_).data();
    context.invoke(codes_.message_initializer(wire, context.record()));
    codes_.send(pass, context, model, wire, context.memory.view(count_table_).data(), statistic);
    if (!context.is_skipped_on_host())
      codes_.receive(pass, context, model, wire, {0, codes_.tables().tiles()}, nullptr);
  }

  void upload(Context& context, std::uint64_t size) {
    lay_out(context, size);
    const segment whole{.size = size};
    context.upload(std::span<const segment>(&whole, 1), context.memory.view(segment_table_));
    if (!context.is_plan()) make_tiles();
    context.upload(std::span<const tile>(payload_tiles_), context.memory.view(tile_table_));
    context.upload(std::span<const std::uint64_t>(counts_), context.memory.view(count_table_));
    codes_.upload_tables(context);
    uploaded_size_ = size;
  }

  // The payload as one signal of one tensor.
  void lay_out(const Context& context, std::uint64_t size) {
    const wire_tensor payload{size, true};
    codes_.lay_out({&payload, 1}, context.ranks.size(), context.ranks.rank());
  }

  void make_tiles() {
    payload_tiles_.clear();
    counts_.clear();
    for (const wire_piece& piece : codes_.wire().pieces())
      for (std::uint64_t done = 0; done < piece.count; done += layout::tile_size) {
        const std::uint64_t count = std::min<std::uint64_t>(layout::tile_size, piece.count - done);
        payload_tiles_.push_back({piece.first + done, 0, static_cast<std::uint32_t>(count)});
        counts_.push_back(count);
      }
  }

  two_phase_exchange<Quantizer, no_storage, no_storage> codes_;
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
