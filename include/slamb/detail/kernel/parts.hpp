// The kernels of a step in which each rank updates a part of the model: docs/algorithms/partition.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/encoder.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/signals.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/kernel/tile_codes.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// The quantizer of values that are sent as they are.
struct whole_floats {
  static constexpr int bits_per_element = 32;
  static constexpr segment_scale scale = segment_scale::none;
  static constexpr bool is_lossless = true;

  template <class Real>
  SLAMB_ELEMENT word_of<Real> encode(const Real& x, const Real& /*scale*/, const Real& /*uniform*/) const {
    return as_word(x);
  }
  template <class Real>
  SLAMB_ELEMENT Real decode(const word_of<Real>& code, const Real& /*scale*/) const {
    return as_real(code);
  }
};
static_assert(quantizer<whole_floats> && capability::encodes_without_scale<whole_floats>);

/// True if a quantizer changes no value.
template <class Quantizer>
inline constexpr bool is_lossless = requires {
  requires Quantizer::is_lossless;
};

/// Writes the tables of this rank's parts, because a framework may have moved parameters, or given a tensor a gradient.
struct follow_tensors {
  static constexpr bool is_small = true;

  const segment* whole = nullptr;      ///< [tensors]
  const tensor_part* parts = nullptr;  ///< [tensors]
  segment* stored = nullptr;           ///< [tensors] receives the parts of the user's parameters
  segment* updated = nullptr;          ///< [tensors] receives the parts that the step updates
  float* exact = nullptr;  ///< [state elements of the parts] the exact parameters; null: the user's are exact
  std::size_t tensors = 0;

  static std::size_t work() noexcept { return 1; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (team.index() != 0) return;
    team.each([&](unsigned thread) {
      for (std::size_t i = thread; i < tensors; i += Team::threads) follow(i);
    });
  }

 private:
  SLAMB_HOST_DEVICE void follow(std::size_t i) const {
    const segment& from = whole[i];
    const bool is_float = from.data_type == element_type::float32;
    segment part = stored[i];
    part.has_gradient = from.has_gradient;
    part.data = static_cast<std::byte*>(from.data) + parts[i].first * (is_float ? 4 : 2);
    stored[i] = part;
    if (exact != nullptr && parts[i].is_cut) {
      part.data = exact + part.state;
      part.data_type = element_type::float32;
    } else if (exact != nullptr && !is_float) {
      part.master = exact + part.state;  // its rounded numbers are written in the same pass
    }
    updated[i] = part;
  }
};

/// The mean of the ranks' signals over this rank's parts, or their sum, if signals are sent as they are.
template <quantizer Quantizer>
struct average_parts {
  Quantizer quantizer;
  model_view view;  ///< of the parts
  wire_view wire;
  const std::size_t* numbers = nullptr;  ///< [tiles] of the parts' tiles among all
  std::size_t tiles = 0;
  float* to = nullptr;  ///< at `segment::first` of each part

  std::size_t work() const noexcept { return tiles; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    typename Team::template registers<typename Team::template results<0, 0>> unused;
    for (std::size_t i = team.index(); i < tiles; i += team.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      if (!s.has_gradient) continue;
      const wire_tile w = wire.tiles[numbers[i]];
      float* const mean = to + s.first + t.first;
      if (w.owner == wire_tile::dense) {
        const float* const sum = wire.dense + w.code;
        each_position(team, 0, t.count, unused, true, [&](auto at, auto& /*own*/) {
          using Real = typename decltype(at)::real;
          store_array(load_array(sum, at) * Real(weight()), mean, at);
        });
      } else {
        const tile_active active(wire, w);
        each_position(team, 0, t.count, unused, true,
                      [&](auto at, auto& /*own*/) { store_array(active.keep(mean_of(w, at), at), mean, at); });
      }
    }
  }

 private:
  SLAMB_HOST_DEVICE float weight() const {
    return is_lossless<Quantizer> ? 1.0F : 1.0F / static_cast<float>(wire.ranks);
  }
  SLAMB_ELEMENT tile_codes<Quantizer, const std::byte> codes_of(const wire_tile& w, std::uint32_t rank) const {
    return {quantizer, wire.received + rank * wire.message_bytes, wire, w};
  }
  // The sum begins with the first rank's value, as a sum of floats in rank order does: -0 stays -0.
  template <class At>
  SLAMB_ELEMENT typename At::real mean_of(const wire_tile& w, At at) const {
    using Real = typename At::real;
    const Real per_rank(weight());
    Real x = per_rank * codes_of(w, 0).decode(at);
    for (std::uint32_t rank = 1; rank < wire.ranks; ++rank) x = x + per_rank * codes_of(w, rank).decode(at);
    return x;
  }
};

/// Stores the compression error of this rank's signal. For a step that is certain.
template <class Storage, class Pass, quantizer Quantizer, class Precision = single_precision>
struct keep_worker_error {
  Pass pass;
  Quantizer quantizer;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    typename Team::template registers<typename Team::template results<0, 0>> unused;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      if (w.owner == wire_tile::dense || is_left_out(wire, view, i)) continue;
      const segment& s = view.segments[t.segment];
      const error_array<Storage> error(wire.worker_error, s.state + t.first);
      using arrays_type = arrays_of_tile<Team, Pass, Precision>;
      const worker_source<Pass, arrays_type, decltype(pass.constants(0)), Storage> source{
          pass, pass.constants(t.segment), arrays_type(view, s, t, i), error, {wire, w}};
      const tile_codes<Quantizer, const std::byte> sent(quantizer, wire.sent + w.owner * wire.message_bytes, wire, w);
      each_position(team, 0, t.count, unused, true, [&](auto at, auto& /*own*/) {
        already_checked checks;
        const auto x = source(at, checks);
        error.store(source.active.keep(x - sent.decode(at), at), at);
      });
    }
  }
};

// The user's parameters of a tile, as they are stored: rounded to the nearest number.
template <class At>
SLAMB_ELEMENT void store_parameters(const typename At::real& x, const float* array, At at) {
  store_array(x, const_cast<float*>(array), at);
}
template <class At>
SLAMB_ELEMENT void store_parameters(const typename At::real& x, const typed_numbers& array, At at) {
  void* const to = const_cast<void*>(array.address);
  if (array.type == element_type::float32)
    store_array(x, static_cast<float*>(to), at);
  else
    store_typed(x, static_cast<std::uint16_t*>(to), array.type, at);
}

/// What a rank sends of its parts: the exact parameters, or their difference from the user's.
template <bool Differs, class Stored>
struct part_source {
  Stored stored;       ///< the user's
  const float* exact;  ///< null: the user's are exact
  tile_active active{};

  template <class At, class Checks>
  SLAMB_ELEMENT typename At::real operator()(At at, Checks& /*checks*/) const {
    if constexpr (Differs) return active.keep(load_array(exact, at) - load_array(stored, at), at);
    return active.keep(exact == nullptr ? load_array(stored, at) : load_array(exact, at), at);
  }
  SLAMB_ELEMENT static void fill_up(std::uint32_t /*i*/) {}
};

/// Encodes the message of this rank's parts, or takes the statistics of its scales.
template <encode_mode Work, quantizer Quantizer, class Precision = single_precision>
struct send_parts {
  Quantizer quantizer;
  model_view view;  ///< of the parts of the user's parameters
  wire_view wire;
  const std::size_t* numbers = nullptr;  ///< [tiles] of the parts' tiles among all
  std::size_t tiles = 0;
  const float* exact = nullptr;  ///< [state elements of the parts]; null: the user's parameters are exact
  double* statistic = nullptr;   ///< [all tiles]; used only if tiles share scales and Work is not codes

  std::size_t work() const noexcept { return tiles; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    using encoder = tile_encoder<Work, Quantizer, Team>;
    typename Team::template registers<typename encoder::sums> mine;
    for (std::size_t i = team.index(); i < tiles; i += team.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      const wire_tile w = wire.tiles[numbers[i]];
      if (w.owner == wire_tile::dense) continue;
      double* const of_tile = encoder::has_statistic ? statistic + numbers[i] : nullptr;
      if (!s.has_gradient) {
        if (of_tile != nullptr) team.first([&] { *of_tile = -1.0; });
        continue;
      }
      const auto stored = Precision::data_of(s, t.first);
      const part_source<!is_lossless<Quantizer>, decltype(stored)> source{stored,
                                                                          from_element(exact, s.state + t.first)};
      const tile_codes<Quantizer, std::byte> to(quantizer, wire.averaged, wire.mean_codes_from(),
                                                wire.mean_tile(numbers[i]));
      const encoder encode{~wire.stream(), w.owner * wire.codes + w.code, t.count};
      encode(team, source, source.active, to, mine, of_tile);
    }
  }
};

/// The ranks' parts → the user's parameters: p ← the received numbers, or p + the received differences.
template <quantizer Quantizer, class Precision = single_precision>
struct receive_parts {
  Quantizer quantizer;
  model_view view;
  wire_view wire;
  tile_range tiles;

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    typename Team::template registers<typename Team::template results<0, 0>> unused;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const segment& s = view.segments[t.segment];
      const std::uint32_t owner = wire.tiles[i].owner;
      if (owner == wire_tile::dense || !s.has_gradient) continue;
      const auto stored = Precision::data_of(s, t.first);
      const tile_codes<Quantizer, const std::byte> sent(quantizer, wire.received + owner * wire.bytes_of_mean_message(),
                                                        wire.mean_codes_from(), wire.mean_tile(i));
      each_position(team, 0, t.count, unused, true, [&](auto at, auto& /*own*/) {
        auto x = sent.decode(at);
        if constexpr (!is_lossless<Quantizer>) x = load_array(stored, at) + x;
        store_parameters(x, stored, at);
      });
    }
  }
};

}  // namespace slamb::detail
