// The kernels of a compressed exchange up to its second collective: they encode this rank's signal, average the codes of all
// ranks, encode the mean, and store the server error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/backend/cuda/detail/lanes.hpp"
#include "slamb/backend/cuda/detail/pass_kernel.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/backend/cuda/detail/tile_access.hpp"
#include "slamb/backend/cuda/detail/tile_codes.hpp"
#include "slamb/backend/cuda/detail/tile_encoder.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail::cuda {

/// Forms the elements of a tile that this rank sends: signal plus worker error.
template <class Pass, class Precision, class Constants, class Storage>
struct worker_source {
  const Pass& pass;
  Constants constants;
  tile_arrays_of<Pass, Precision> all;
  error_array<Storage> error;
  tile_active active;

  template <class At, class Checks>
  SLAMB_ELEMENT typename At::real signal(element_of<Pass, typename At::real>& e, At at, Checks& checks) const {
    typename At::real x = signal_of(pass, e, constants, checks);
    if constexpr (error_array<Storage>::exists) x = x + error.load(at);
    checks.check_finite(error_array<Storage>::bound(x));
    return x;
  }

  template <class At, class Checks>
  SLAMB_ELEMENT typename At::real operator()(At at, Checks& checks) const {
    element_of<Pass, typename At::real> e;
    hide(e);
    all.load(typename Pass::signal_reads(), e, at);
    return active.keep_or_announce(signal(e, at, checks), at);
  }
  SLAMB_ELEMENT static void fill_up(std::uint32_t /*i*/) {}
};

/// Forms the elements of a tile of this rank's chunk: the mean of the ranks' decoded codes plus the server error. Stores them in
/// `wire.mean`.
template <class Quantizer, class Storage>
struct server_source {
  const Quantizer& quantizer;
  const wire_view& wire;
  wire_tile tile;
  error_array<Storage> error;
  tile_active active;

  SLAMB_HOST_DEVICE float* mean() const { return wire.mean + tile.code; }

  template <class At, class Checks>
  SLAMB_ELEMENT typename At::real operator()(At at, Checks& /*checks*/) const {
    using real = typename At::real;
    const real per_rank = real(1.0F) / real(static_cast<float>(wire.ranks));
    real x(0.0F);
    for (std::uint32_t rank = 0; rank < wire.ranks; ++rank) {
      const tile_codes<Quantizer, const std::byte> codes(wire.received + rank * wire.message_bytes, wire, tile);
      x = x + per_rank * codes.decode(quantizer, at);
    }
    if constexpr (error_array<Storage>::exists) x = x + error.load(at);
    x = active.keep(x, at);
    if constexpr (can_announce<Quantizer>)
      if (const std::uint32_t which = active.announcing(at); which != 0)
        x = select(mask_of(which, at), announced_by_any(at), x);
    store(x, mean(), at);
    return x;
  }
  SLAMB_ELEMENT void fill_up(std::uint32_t i) const { mean()[i] = 0.0F; }

 private:
  template <class At>
  SLAMB_ELEMENT typename At::real announced_by_any(At at) const {
    using real = typename At::real;
    real least(0.0F);
    for (std::uint32_t rank = 0; rank < wire.ranks; ++rank) {
      const tile_codes<Quantizer, const std::byte> codes(wire.received + rank * wire.message_bytes, wire, tile);
      least = minimum(least, codes.decode(quantizer, at, real(1.0F)));
    }
    return select(least < real(0.0F), real(announcement), real(0.0F));
  }
};

/// Encodes this rank's signal, or takes the statistics of its scales. Copies dense signals to `wire.dense`, unless Work is
/// codes: then an earlier launch with `statistics` has copied them.
template <encode_mode Work, class Storage, class Pass, class Quantizer, class Precision = single_precision>
struct send_kernel {
  static constexpr unsigned threads = 512;
  using encoder = tile_encoder<Work, Quantizer, threads>;

  Pass pass;
  Quantizer quantizer;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;
  double* statistic = nullptr;          ///< [all tiles]; used only if tiles share scales and Work is not encode
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value to be sent is not finite; may be null

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    typename Block::template registers<thread_sums<0>> checks;
    for (std::size_t i = tiles.first + block.index(); i < tiles.last; i += block.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      if (is_left_out(wire, view, i)) {
        leave_out_of_message(block, t, w, encoder::has_statistic ? statistic + i : nullptr);
        continue;
      }
      if (w.owner == wire_tile::dense) {
        if constexpr (Work != encode_mode::codes) copy(block, t, i, w, checks);
        if constexpr (encoder::has_statistic) block.first([&] { statistic[i] = 0.0; });
        continue;
      }
      const segment& s = view.segments[t.segment];
      const worker_source<Pass, Precision, decltype(pass.constants(0)), Storage> source{
          pass,
          pass.constants(t.segment),
          tile_arrays_of<Pass, Precision>(view, s, t, i),
          {wire.worker_error, s.state + t.first},
          {wire, w}};
      const tile_codes<Quantizer, std::byte> to(wire.sent + w.owner * wire.message_bytes, wire, w);
      const encoder encode{quantizer, wire.stream(), w.owner * wire.codes + w.code, t.count};
      encode(block, source, source.active, to, checks, encoder::has_statistic ? statistic + i : nullptr);
    }
    note_usable(block, checks, not_finite);
  }

 private:
  template <class Block>
  SLAMB_HOST_DEVICE void leave_out_of_message(Block& block, const tile& t, const wire_tile& w, double* of_tile) const {
    if (of_tile != nullptr) block.first([&] { *of_tile = -1.0; });
    if (w.owner == wire_tile::dense)
      block.each([&](unsigned thread) {
        for (std::uint32_t i = thread; i < t.count; i += threads) wire.dense[w.code + i] = 0.0F;
      });
  }

  template <class Block, class Checks>
  SLAMB_HOST_DEVICE void copy(Block& block, const tile& t, std::size_t number, const wire_tile& w,
                              Checks& checks) const {
    const worker_source<Pass, Precision, decltype(pass.constants(0)), no_storage> source{
        pass,
        pass.constants(t.segment),
        tile_arrays_of<Pass, Precision>(view, view.segments[t.segment], t, number),
        {nullptr, 0},
        {}};
    float* const to = wire.dense + w.code;
    block.each([&](unsigned thread) {
      thread_sums<0> own = checks[thread];
      for_each_group<threads>(thread, t.count, [&](auto at) { store(source(at, own), to, at); });
      checks[thread] = own;
    });
  }
};

/// Encodes the mean of the ranks' signals over this rank's chunk, or takes the statistics of its scales. If a message has the
/// overflow flag, encodes nothing and sets `not_finite`, which no block reads. It must not set `skip`, because blocks that begin
/// late still read it: `skip` is set after the second collective. Every block reads the flags itself, because blocks run in no
/// fixed order.
template <encode_mode Work, class Storage, class Quantizers>
struct average_kernel {
  static constexpr unsigned threads = 512;
  using signal_quantizer = signal_quantizer_t<Quantizers>;
  using mean_quantizer = mean_quantizer_t<Quantizers>;
  using encoder = tile_encoder<Work, mean_quantizer, threads>;
  /// For a mean with scales of blocks, and for signals with announcements, ptxas aims at three blocks of threads, and spills; two
  /// allow 64 registers. 0: it chooses.
  static constexpr unsigned blocks_at_once =
      scale_traits<mean_quantizer>::has_blocks || can_announce<signal_quantizer> ? 2 : 0;

  Quantizers quantizers;
  model_view view;
  wire_view wire;
  const std::size_t* own = nullptr;  ///< [own_tiles] the tiles of this rank's chunk
  std::size_t own_tiles = 0;
  double* statistic = nullptr;  ///< [all tiles]; used only if tiles share scales and Work is not encode
  read_overflow_flags read_flags{};

  /// The most blocks that have work to do.
  std::size_t work() const noexcept { return own_tiles == 0 && read_flags.record != nullptr ? 1 : own_tiles; }

  template <class Block>
  SLAMB_HOST_DEVICE void operator()(Block& block) const {
    if (is_skipped(view.skip)) return;
    if (has_overflow(block)) {
      if (block.index() == 0) block.first([&] { read_flags.record->not_finite = 1; });
      return;
    }
    typename Block::template registers<thread_sums<0>> unused;
    for (std::size_t i = block.index(); i < own_tiles; i += block.count()) {
      const wire_tile w = wire.tiles[own[i]];
      if (is_left_out(wire, view, own[i])) {
        if constexpr (encoder::has_statistic) block.first([&] { statistic[own[i]] = -1.0; });
        continue;
      }
      const server_source<signal_quantizer, Storage> source{
          worker_quantizer(quantizers), wire, w, {wire.server_error, w.code}, {wire, w}};
      const tile_codes<mean_quantizer, std::byte> to(wire.averaged, wire.mean_codes_from(), wire.mean_tile(own[i]));
      const encoder encode{server_quantizer(quantizers), ~wire.stream(), w.owner * wire.codes + w.code,
                           view.tiles[own[i]].count};
      encode(block, source, source.active, to, unused, encoder::has_statistic ? statistic + own[i] : nullptr);
    }
  }

 private:
  // True if any thread finds an overflow flag. `any` is not used: if ptxas (13.0, sm_90) knows that all threads branch alike, it
  // uses up to 64 registers for the code that follows, and spills some. The result of a maximum comes from shared memory, and
  // the number of registers does not change.
  template <class Block>
  SLAMB_HOST_DEVICE bool has_overflow(Block& block) const {
    return block.maximum([&](unsigned thread) { return read_flags.has_overflow(thread, threads) ? 1.0F : 0.0F; }) !=
           0.0F;
  }
};

/// Stores the server error of a tile of this rank's chunk: the compression error of its mean.
///
/// @param quantizer  of the mean
template <class Storage, class Block, class Quantizer>
SLAMB_HOST_DEVICE void keep_server_error(Block& block, const Quantizer& quantizer, const model_view& view,
                                         const wire_view& wire, std::size_t number) {
  if (is_left_out(wire, view, number)) return;
  const wire_tile w = wire.tiles[number];
  const std::uint32_t count = view.tiles[number].count;
  const tile_active active(wire, w);
  const error_array<Storage> error(wire.server_error, w.code);
  const tile_codes<Quantizer, const std::byte> decoded(wire.averaged, wire.mean_codes_from(), wire.mean_tile(number));
  const float* const mean = wire.mean + w.code;
  block.each([&](unsigned thread) {
    for_each_group<Block::threads>(thread, count, [&](auto at) {
      error.store(active.keep(load(mean, at) - decoded.decode(quantizer, at), at), at);
    });
    for (std::uint32_t i = count + thread; i < padded(count); i += Block::threads)
      error.store(reals<1>(0.0F), group<1>{i});
  });
}

}  // namespace slamb::detail::cuda
