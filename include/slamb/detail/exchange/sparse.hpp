// The exchange of a payload of selected elements: as floats, by one all_reduce, or in few bits, by two collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slamb/compressor/chain.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/exchange/summable.hpp"
#include "slamb/detail/exchange/two_phase.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// The most elements that are sent at any one step, of tensors that are exchanged whole or as the sparsifier says.
template <class Sparsifier>
std::uint64_t largest_payload_of(const Sparsifier& sparsifier, std::span<const segment> tensors) {
  std::uint64_t payload = 1;  // of which some is always sent
  for (const segment& s : tensors) payload += s.dense ? s.size : largest_payload_of(sparsifier, s.size);
  return payload;
}

/// Finds where each tile's selected elements go, and returns the part of `room` that they take, at least one element. Of a payload
/// that is constant but for a few elements it is all of `room` where finding the size would take waiting; then the pass that packs it
/// sets what is left free to 0, by payload_view::room. Where it is time for that, ranks compare what is selected in the exchange
/// that follows.
template <class Sparsifier, class Base, class Selection>
std::span<float> place_payload(Base& base, const Selection& selection, std::span<std::uint64_t> tile_first,
                               std::span<float> room) {
  if constexpr (!Base::executor_type::is_synchronous && bool(Sparsifier::payload_is_constant)) {
    base.executor.place_payload_in(base.view(), selection, tile_first, room.size(), &base.record()->refused);
    base.compared.note_selection(base, selection, tile_first);
    return room;
  }
  const std::uint64_t size = base.executor.place_payload(base.view(), selection, tile_first, base.ranks.base());
  if (size > room.size())
    throw error("slamb: the compressor selected " + std::to_string(size) + " elements, but said that at most " +
                std::to_string(room.size()) + " are selected at any step");
  base.compared.note_selection(base, selection, tile_first);
  const std::span<float> sent = room.first(std::max<std::uint64_t>(size, 1));
  if (size == 0) base.executor.write(sent.data(), 0.0F);
  return sent;
}

/// What ranks send as it is: the payload becomes its sum over ranks.
template <class Compressor, class Base>
class payload_exchange {
 public:
  explicit payload_exchange(const Compressor& /*compressor*/) {}

  /// @param largest  elements of the largest payload
  void plan(Base& /*base*/, std::uint64_t /*largest*/) {}

  /// What the exchanged payload must be multiplied by to be a mean.
  static float scale(const Base& base) noexcept { return 1.0F / static_cast<float>(base.ranks.size()); }

  /// Refuses the step, on all ranks, if any has seen what is not finite.
  ///
  /// @param lost  [payload] nothing is lost: left alone
  void exchange(std::span<float> payload, float* /*lost*/, Base& base) const {
    exchange(payload, payload.size(), base);
  }
  /// @param whole  floats of the payload of which this is the first part; what is behind it has been exchanged before
  void exchange(std::span<float> payload, std::uint64_t whole, Base& base) const {
    all_reduce_or_refuse(payload, whole, base);
  }
};

namespace array {

/// What encoding has lost of a payload, where it is put aside.
struct payload_loss : state_array {
  template <class T>
  struct field {
    T payload_loss;
  };
};

}  // namespace array

/// The payload as a signal; it becomes its mean, and what encoding lost of this rank's is added or put aside.
template <bool KeepsApart>
struct encoded_payload : pass_without_constants {
  using signal_reads = arrays<array::exchanged>;
  using reads = arrays<>;
  using writes = union_of_t<arrays<array::exchanged>, arrays_if<KeepsApart, arrays<array::payload_loss>>>;
  static constexpr int sums = 0;
  static constexpr bool uses_lost = true;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.exchanged);
    return e.exchanged;
  }

  // docs/algorithms/compressors.md (17), (18)
  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    if constexpr (KeepsApart)
      e.payload_loss = e.lost;
    else
      e.exchanged = e.exchanged + e.lost;
  }
};

/// The same in few bits. With one rank it is the identity.
template <chained Compressor, class Base>
class payload_exchange<Compressor, Base> {
  using quantizer_type = decltype(Compressor::quantizer);
  using executor_type = typename Base::executor_type;
  using no_storage = typename executor_type::no_error_storage;

 public:
  explicit payload_exchange(const Compressor& compressor) : codes_(compressor.quantizer) {}

  void plan(Base& base, std::uint64_t largest) {
    if (base.ranks.size() == 1) return;
    lay_out(base, largest);  // no payload has more pieces, codes and tiles than the largest has at most
    const std::uint64_t tiles = largest / layout::tile_size + static_cast<std::uint64_t>(base.ranks.size()) + 1;
    payload_tiles_.reserve(tiles);
    counts_.reserve(tiles);
    tile_table_ = base.memory.template plan<tile>("tables", tiles);
    count_table_ = base.memory.template plan<std::uint64_t>("tables", tiles);
    codes_.tables().plan(base, tiles);
    segment_table_ = base.memory.template plan<segment>("tables", 1);
    statistic_ = base.memory.template plan<double>("sums", tiles);
    buffer_ = base.memory.template plan<std::byte>("payload", codes_.buffer_bytes());
  }

  static float scale(const Base& /*base*/) noexcept { return 1.0F; }

  /// The same, with what encoding lost added to the mean. Nothing of a payload in few bits is exchanged before.
  void exchange(std::span<float> payload, std::uint64_t /*whole*/, Base& base) { exchange(payload, nullptr, base); }
  /// @param lost  [payload] receives what encoding lost of this rank's payload; null: it is added to the mean
  void exchange(std::span<float> payload, float* lost, Base& base) {
    if (base.ranks.size() == 1) {
      if (lost != nullptr) base.executor.clear(std::as_writable_bytes(std::span(lost, payload.size())));
      return base.executor.invoke(refuse_alone{base.record()});
    }
    if (payload.size() != uploaded_size_) upload(base, payload.size());
    const model_view payload_alone{.segments = base.memory.view(segment_table_).data(),
                                   .tiles = base.memory.view(tile_table_).data(),
                                   .exchanged = payload.data(),
                                   .refused = base.view().refused};
    if (lost != nullptr)
      exchange_as(encoded_payload<true>{}, state_view<model_view, arrays<array::payload_loss>>{payload_alone, {{lost}}},
                  base);
    else
      exchange_as(encoded_payload<false>{}, payload_alone, base);
  }

 private:
  template <class Pass, class View>
  void exchange_as(const Pass& pass, const View& model, Base& base) {
    const wire_view wire = codes_.view(base, base.memory.view(buffer_));
    double* const statistic = base.memory.view(statistic_).data();
    base.executor.invoke(codes_.starts(wire, base.record()));
    codes_.send(pass, base, model, wire, base.memory.view(count_table_).data(), statistic);
    if (!base.is_known_to_be_refused())
      codes_.receive(pass, base.executor, model, wire, {0, payload_tiles_.size()}, nullptr);
  }

  void upload(Base& base, std::uint64_t size) {
    lay_out(base, size);
    const segment whole{.size = size};
    base.executor.upload(std::span<const segment>(&whole, 1), base.memory.view(segment_table_));
    base.executor.upload(std::span<const tile>(payload_tiles_), base.memory.view(tile_table_));
    base.executor.upload(std::span<const std::uint64_t>(counts_), base.memory.view(count_table_));
    codes_.tables().upload(base);
    uploaded_size_ = size;
  }

  // The payload as one signal of one tensor.
  void lay_out(const Base& base, std::uint64_t size) {
    const wire_tensor payload{size, true};
    codes_.lay_out({&payload, 1}, base.ranks.size(), base.ranks.rank());
    payload_tiles_.clear();
    counts_.clear();
    for (const wire_piece& piece : codes_.wire().pieces())
      for (std::uint64_t done = 0; done < piece.count; done += layout::tile_size) {
        const std::uint64_t count = std::min<std::uint64_t>(layout::tile_size, piece.count - done);
        payload_tiles_.push_back({piece.first + done, 0, static_cast<std::uint32_t>(count)});
        counts_.push_back(count);
      }
  }

  code_exchange<quantizer_type, executor_type, no_storage, no_storage> codes_;
  std::vector<tile> payload_tiles_;
  std::vector<std::uint64_t> counts_;  // [tiles] elements
  std::uint64_t uploaded_size_ = 0;    // of the payload that the tables are for
  region<tile> tile_table_;
  region<std::uint64_t> count_table_;
  region<segment> segment_table_;
  region<double> statistic_;
  region<std::byte> buffer_;
};

}  // namespace slamb::detail
