// Encodes one tile in a quantized exchange: this rank's signal, then the mean over ranks. Also finds the server error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slamb/backend/host/detail/simd_words.hpp"
#include "slamb/backend/host/detail/tile_codes.hpp"
#include "slamb/backend/host/detail/tile_runner.hpp"
#include "slamb/backend/host/detail/uniform.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// The statistic from which a scale is computed: a sum of squares, a sum of magnitudes, or the largest magnitude.
template <segment_scale Scale>
struct scale_statistic {
  double_sum sum;
  f32x16 largest{0.0F};

  SLAMB_ALWAYS_INLINE void add(const f32x16& x) {
    if constexpr (Scale == segment_scale::l2) sum.add_square(x);
    if constexpr (Scale == segment_scale::l1) sum.add(absolute(x));
    if constexpr (Scale == segment_scale::max) largest = maximum(largest, absolute(x));
  }
  double total() const {
    if constexpr (Scale == segment_scale::max) {
      float lane[lanes];
      largest.store(lane);
      return *std::max_element(lane, lane + lanes);
    }
    return sum.total();
  }
};

/// Divides elements first … past − 1 into groups of sixteen. Calls body(i) for elements i … i + 15, and body(i, number) for the
/// rest at the end.
template <class Body>
SLAMB_ALWAYS_INLINE void by_lanes(std::uint32_t first, std::uint32_t past, const Body& body) {
  std::uint32_t i = first;
  for (; past - i >= lanes; i += lanes) body(i);
  if (i < past) body(i, static_cast<int>(past - i));
}

/// Encodes `count` elements of `source`. source(i) returns elements i … i + 15; source(i, number) returns `number` elements, then
/// 0. Both return 0 for inactive elements. Returns the statistic; 0 if it is not computed.
///
/// @param position  place of the first element among the codes of all messages: the counter of random draws
template <encode_mode Work, class Quantizer, class Source>
SLAMB_ALWAYS_INLINE double encode_elements(const Quantizer& quantizer, const Source& source, std::uint32_t count,
                                           std::uint64_t random_stream, std::uint64_t position,
                                           const tile_codes<Quantizer, std::byte>& to) {
  constexpr bool blocks = tile_codes<Quantizer, std::byte>::has_blocks;
  constexpr bool encodes = Work != encode_mode::statistics;
  constexpr std::uint32_t piece = 1024;  // elements encoded at a time: complete blocks
  alignas(64) float uniform[piece];
  alignas(64) float value[piece];
  scale_statistic<Quantizer::scale> all;
  f32x16 scale(1.0F);
  if constexpr (Work == encode_mode::codes) scale = to.scale_at(quantizer, 0);
  const auto code = [&](const f32x16& x, std::uint32_t i) {
    const f32x16 at_random =
        capability::stochastic_quantizer<Quantizer> ? f32x16::load(uniform + i % piece) : f32x16(0.5F);
    to.store(quantizer.encode(x, scale, at_random), i);
  };
  for (std::uint32_t first = 0; first < count; first += piece) {
    const std::uint32_t past = std::min(count, first + piece);
    if constexpr (encodes && capability::stochastic_quantizer<Quantizer>)
      fill_uniform(quantizer.seed, random_stream, position + first, (past - first + lanes - 1) / lanes * lanes,
                   uniform);
    by_lanes(first, past, [&](std::uint32_t i, auto... number) {
      const f32x16 x = source(i, number...);
      if constexpr (!blocks && Work != encode_mode::codes) all.add(x);
      if constexpr (blocks)
        x.store(value + i % piece);
      else if constexpr (encodes)
        code(x, i);
    });
    if constexpr (blocks) {
      const auto block = static_cast<std::uint32_t>(quantizer.block);
      for (std::uint32_t begin = first; begin < past; begin += block) {
        const std::uint32_t end = std::min(past, begin + block);
        scale_statistic<Quantizer::scale> own;
        for (std::uint32_t i = begin; i < end; i += lanes) own.add(f32x16::load(value + i % piece));
        const float of_block = scale_of<Quantizer::scale>(own.total(), source.active(begin, end));
        scale = f32x16(write_scale(quantizer, to.message, to.scale + begin / block, of_block));
        for (std::uint32_t i = begin; i < end; i += lanes) code(f32x16::load(value + i % piece), i);
      }
    }
  }
  return all.total();
}

/// Forms the elements of a tile that this rank sends: signal plus worker error.
template <class Pass, class View, class Constants, class Storage>
struct worker_source {
  const Pass& pass;
  Constants constants;
  tile_arrays_of<Pass, View> at;
  error_array<Storage> error;
  tile_active active;
  tile_sums<0>& checks;

  template <class... Count>
  SLAMB_ALWAYS_INLINE f32x16 signal(element_of<Pass, f32x16>& e, std::size_t i, Count... count) const {
    f32x16 x = pass.signal(e, constants, checks);
    if constexpr (error_array<Storage>::exists) x = x + error.load(i, count...);
    checks.check_finite(error_array<Storage>::bound(x));
    return x;
  }

  template <class... Count>
  SLAMB_ALWAYS_INLINE f32x16 operator()(std::uint32_t i, Count... count) const {
    element_of<Pass, f32x16> e;
    if constexpr (std::is_same_v<typename Pass::signal_reads, arrays<array::gradient>>)
      read_ahead(address_of(at.gradient, i));
    at.load(typename Pass::signal_reads(), e, i, count...);
    return active.keep_or_announce(signal(e, i, count...), i, count...);
  }
};

/// Forms the mean over ranks of a tile of this rank's chunk, plus the server error, and stores it in `wire.mean`.
template <class Quantizer, class Storage>
struct server_source {
  const Quantizer& quantizer;
  const wire_view& wire;
  wire_tile tile;
  error_array<Storage> error;
  tile_active active;

  template <class... Count>
  SLAMB_ALWAYS_INLINE f32x16 operator()(std::uint32_t i, Count... count) const {
    const f32x16 per_rank(1.0F / static_cast<float>(wire.ranks));
    f32x16 mean(0.0F);
    for (std::uint32_t rank = 0; rank < wire.ranks; ++rank) {
      const tile_codes<Quantizer, const std::byte> codes(wire.received + rank * wire.message_bytes, wire, tile);
      mean = mean + per_rank * codes.decode(quantizer, i, codes.scale_at(quantizer, i));
    }
    if constexpr (error_array<Storage>::exists) mean = mean + error.load(i);
    mean = active.keep(mean, i, count...);
    if constexpr (can_announce<Quantizer>)
      if (const std::uint32_t which = active.announcing(i, static_cast<std::uint32_t>(count)...); which != 0)
        mean = select(mask_of(which), announced_by_any(i), mean);
    mean.store(wire.mean + tile.code + i);
    return mean;
  }

  SLAMB_ALWAYS_INLINE f32x16 announced_by_any(std::uint32_t i) const {
    f32x16 least(0.0F);
    for (std::uint32_t rank = 0; rank < wire.ranks; ++rank) {
      const tile_codes<Quantizer, const std::byte> codes(wire.received + rank * wire.message_bytes, wire, tile);
      least = minimum(least, codes.decode(quantizer, i, f32x16(1.0F)));
    }
    return select(least < f32x16(0.0F), f32x16(announcement), f32x16(0.0F));
  }
};

/// Encodes one tile of this rank's signal, or computes its statistic. Copies a tile of a dense tensor. Returns true if all
/// checked values are finite.
template <encode_mode Work, class Storage, class Pass, class Quantizer, class View>
SLAMB_FLATTEN bool send_tile(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire,
                             std::size_t tile_number, double* statistic) {
  const tile t = view.tiles[tile_number];
  const wire_tile w = wire.tiles[tile_number];
  const segment& s = view.segments[t.segment];
  tile_sums<0> checks;
  if (is_left_out(wire, view, tile_number)) {
    *statistic = -1.0;
    if (w.owner == wire_tile::dense) std::fill(wire.dense + w.code, wire.dense + w.code + t.count, 0.0F);
    return true;
  }
  if (w.owner == wire_tile::dense) {
    if constexpr (Work == encode_mode::codes) return true;  // copied when it was measured
    const worker_source<Pass, View, decltype(pass.constants(0)), no_storage> source{
        pass,  pass.constants(t.segment), tile_arrays_of<Pass, View>(view, s, t, tile_number), {nullptr, 0}, {{}, {}},
        checks};
    by_lanes(0, t.count,
             [&](std::uint32_t i, auto... number) { source(i, number...).store(wire.dense + w.code + i, number...); });
    *statistic = 0.0;
    return checks.all_finite();
  }
  const worker_source<Pass, View, decltype(pass.constants(0)), Storage> source{
      pass,
      pass.constants(t.segment),
      tile_arrays_of<Pass, View>(view, s, t, tile_number),
      {wire.worker_error, s.state + t.first},
      {wire, w},
      checks};
  const tile_codes<Quantizer, std::byte> to(wire.sent + w.owner * wire.message_bytes, wire, w);
  *statistic = encode_elements<Work>(quantizer, source, t.count, wire.stream(), w.owner * wire.codes + w.code, to);
  return checks.all_finite();
}

/// Encodes the mean over ranks of one tile of this rank's chunk, or computes its statistic.
template <encode_mode Work, class Storage, class Quantizers>
SLAMB_FLATTEN void average_tile(const Quantizers& quantizers, const model_view& view, const wire_view& wire,
                                std::size_t tile_number, double* statistic) {
  const wire_tile w = wire.tiles[tile_number];
  if (is_left_out(wire, view, tile_number)) {
    *statistic = -1.0;
    return;
  }
  const server_source<signal_quantizer_t<Quantizers>, Storage> source{
      worker_quantizer(quantizers), wire, w, {wire.server_error, w.code}, {wire, w}};
  const tile_codes<mean_quantizer_t<Quantizers>, std::byte> to(wire.averaged, wire.mean_codes_from(),
                                                               wire.mean_tile(tile_number));
  *statistic = encode_elements<Work>(server_quantizer(quantizers), source, view.tiles[tile_number].count,
                                     ~wire.stream(), w.owner * wire.codes + w.code, to);
}

/// Stores the server error of one tile of this rank's chunk: the compression error of its mean.
///
/// @param quantizer  of the mean
template <class Storage, class Quantizer>
SLAMB_FLATTEN void keep_server_error(const Quantizer& quantizer, const model_view& view, const wire_view& wire,
                                     std::size_t tile_number) {
  if (is_left_out(wire, view, tile_number)) return;
  const wire_tile w = wire.tiles[tile_number];
  const tile_active active(wire, w);
  const error_array<Storage> error(wire.server_error, w.code);
  const tile_codes<Quantizer, const std::byte> codes_of_mean(wire.averaged, wire.mean_codes_from(),
                                                             wire.mean_tile(tile_number));
  const std::uint32_t count = view.tiles[tile_number].count;
  for (std::uint32_t i = 0; i < count; i += lanes) {
    const f32x16 compression_error =
        f32x16::load(wire.mean + w.code + i) - codes_of_mean.decode(quantizer, i, codes_of_mean.scale_at(quantizer, i));
    error.store(select(mask_of(active.at(i, count - i)), compression_error, f32x16(0.0F)), i);
  }
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
