// The kernels of a quantized exchange, over tiles: docs/algorithms/one_bit_exchange.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/kernel/encoder.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/kernel/run_pass.hpp"
#include "slamb/detail/kernel/signals.hpp"
#include "slamb/detail/kernel/tile_arrays.hpp"
#include "slamb/detail/kernel/tile_codes.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// Encodes this rank's signal, or takes the statistics of its scales. Copies dense signals to `wire.dense`, unless Work is
/// codes: then an earlier launch with `statistics` has copied them.
template <encode_mode Work, class Storage, class Pass, class Quantizer, class Precision = single_precision>
struct send_signal {
  Pass pass;
  Quantizer quantizer;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;
  double* statistic = nullptr;          ///< [all tiles]; used only if tiles share scales and Work is not codes
  std::uint32_t* not_finite = nullptr;  ///< becomes 1 if a value to be sent is not finite; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    using encoder = tile_encoder<Work, Quantizer, Team>;
    typename Team::template registers<typename encoder::sums> mine;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      double* const of_tile = encoder::has_statistic ? statistic + i : nullptr;
      if (is_left_out(wire, view, i)) {
        leave_out_of_message(team, t, w, of_tile);
      } else if (w.owner == wire_tile::dense) {
        if constexpr (Work != encode_mode::codes) copy(team, t, i, w, mine);
        if (of_tile != nullptr) team.first([&] { *of_tile = 0.0; });
      } else {
        const auto source = source_of<Storage, Team>(t, i, {wire.worker_error, state_of_tile(t)}, {wire, w});
        const tile_codes<Quantizer, std::byte> to(quantizer, wire.sent + w.owner * wire.message_bytes, wire, w);
        const encoder encode{wire.stream(), w.owner * wire.codes + w.code, t.count};
        encode(team, source, source.active, to, mine, of_tile);
      }
    }
    note_usable(team, mine, not_finite);
  }

 private:
  SLAMB_HOST_DEVICE std::uint64_t state_of_tile(const tile& t) const {
    return view.segments[t.segment].state + t.first;
  }

  template <class ErrorStorage, class Team>
  SLAMB_HOST_DEVICE auto source_of(const tile& t, std::size_t number, const error_array<ErrorStorage>& error,
                                   const tile_active& active) const {
    using arrays_type = arrays_of_tile<Team, Pass, Precision>;
    return worker_source<Pass, arrays_type, decltype(pass.constants(0)), ErrorStorage>{
        pass, pass.constants(t.segment), arrays_type(view, view.segments[t.segment], t, number), error, active};
  }

  template <class Team>
  SLAMB_HOST_DEVICE void leave_out_of_message(Team& team, const tile& t, const wire_tile& w, double* of_tile) const {
    if (of_tile != nullptr) team.first([&] { *of_tile = -1.0; });
    if (w.owner == wire_tile::dense)
      team.each([&](unsigned thread) {
        for (std::uint32_t i = thread; i < t.count; i += Team::threads) wire.dense[w.code + i] = 0.0F;
      });
  }

  template <class Team, class Mine>
  SLAMB_HOST_DEVICE void copy(Team& team, const tile& t, std::size_t number, const wire_tile& w, Mine& mine) const {
    const auto source = source_of<no_storage, Team>(t, number, {nullptr, 0}, {});
    float* const to = wire.dense + w.code;
    each_position(team, 0, t.count, mine, true, [&](auto at, auto& own) { store_array(source(at, own), to, at); });
  }
};

/// Encodes the mean of the ranks' signals over this rank's chunk, or takes the statistics of its scales. If a message has the
/// overflow flag, encodes nothing and sets `not_finite`, which no team reads. It must not set `skip`, because teams that begin
/// late still read it: `skip` is set after the second collective. Every team reads the flags itself, because teams run in no
/// fixed order.
template <encode_mode Work, class Storage, class Quantizers>
struct average_signals {
  using signal_quantizer = signal_quantizer_t<Quantizers>;
  using mean_quantizer = mean_quantizer_t<Quantizers>;

  Quantizers quantizers;
  model_view view;
  wire_view wire;
  const std::size_t* own = nullptr;  ///< [own_tiles] the tiles of this rank's chunk
  std::size_t own_tiles = 0;
  double* statistic = nullptr;  ///< [all tiles]; used only if tiles share scales and Work is not codes
  read_overflow_flags read_flags{};

  std::size_t work() const noexcept { return own_tiles == 0 && read_flags.record != nullptr ? 1 : own_tiles; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    if (has_overflow(team)) {
      if (team.index() == 0) team.first([&] { read_flags.record->not_finite = 1; });
      return;
    }
    using encoder = tile_encoder<Work, mean_quantizer, Team>;
    typename Team::template registers<typename encoder::sums> mine;
    for (std::size_t i = team.index(); i < own_tiles; i += team.count()) {
      const wire_tile w = wire.tiles[own[i]];
      double* const of_tile = encoder::has_statistic ? statistic + own[i] : nullptr;
      if (is_left_out(wire, view, own[i])) {
        if (of_tile != nullptr) team.first([&] { *of_tile = -1.0; });
        continue;
      }
      const server_source<signal_quantizer, Storage> source{
          worker_quantizer(quantizers), wire, w, {wire.server_error, w.code}, {wire, w}};
      const tile_codes<mean_quantizer, std::byte> to(server_quantizer(quantizers), wire.averaged,
                                                     wire.mean_codes_from(), wire.mean_tile(own[i]));
      const encoder encode{~wire.stream(), w.owner * wire.codes + w.code, view.tiles[own[i]].count};
      encode(team, source, source.active, to, mine, of_tile);
    }
  }

 private:
  // True if any thread finds an overflow flag. `any` is not used: if ptxas (13.0, sm_90) knows that all threads branch alike, it
  // uses up to 64 registers for the code that follows, and spills some. The result of a maximum comes from shared memory, and
  // the number of registers does not change.
  template <class Team>
  SLAMB_HOST_DEVICE bool has_overflow(Team& team) const {
    return team.maximum(
               [&](unsigned thread) { return read_flags.has_overflow(thread, Team::threads) ? 1.0F : 0.0F; }) != 0.0F;
  }
};

/// Runs a pass with the mean of the ranks' signals. Stores the compression errors of this rank's signal (worker error) and of
/// the mean of its chunk (server error).
template <class Storage, class ServerStorage, class Pass, class Quantizers, class Precision = single_precision>
struct receive_mean {
  Pass pass;
  Quantizers quantizers;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;
  double* sums = nullptr;  ///< [all tiles][results] each tile's sums, then its maxima; may be null

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      const tile t = view.tiles[i];
      const wire_tile w = wire.tiles[i];
      const segment& s = view.segments[t.segment];
      double* const of_tile = sums == nullptr ? nullptr : sums + i * static_cast<std::size_t>(results_v<Pass>);
      if (is_left_out(wire, view, i)) {
        leave_out<Pass>(team, view, s, t, of_tile);
      } else if (w.owner == wire_tile::dense) {
        run<no_storage>(team, i, t, {nullptr, 0},
                        unmasked_tile{wire.dense + w.code, 1.0F / static_cast<float>(wire.ranks)}, of_tile);
      } else {
        run<Storage>(team, i, t, {wire.worker_error, s.state + t.first}, decoded_tile<Quantizers>(quantizers, wire, i),
                     of_tile);
        if constexpr (error_array<ServerStorage>::exists)  // reads the owner again: ptxas would spill it for sm_80
          if (wire.tiles[i].owner == wire.rank) keep_server_error(team, i);
      }
    }
  }

 private:
  static constexpr bool uses_compression_error = requires { Pass::uses_compression_error; };

  template <class ErrorStorage, class Team, class Decoded>
  SLAMB_HOST_DEVICE void run(Team& team, std::size_t number, const tile& t, const error_array<ErrorStorage>& error,
                             const Decoded& decoded, double* of_tile) const {
    // The signal is formed only if its compression error is used.
    constexpr bool forms_signal = Decoded::is_lossy && (error_array<ErrorStorage>::exists || uses_compression_error);
    using reads = union_of_t<typename Pass::reads, arrays_if<forms_signal, typename Pass::signal_reads>>;
    const arrays_of_tile<Team, Pass, Precision> at(view, view.segments[t.segment], t, number);
    const auto constants = pass.constants(t.segment);
    typename Team::template registers<sums_of<Team, Pass>> mine;
    each_position_of<typename Pass::writes>(
        team, at, 0, t.count, mine, true, [&](const auto& arrays, auto here, auto& own) {
          using Real = typename decltype(here)::real;
          element_of<Pass, Real> e;
          hide(e);
          arrays.load(reads(), e, here);
          if constexpr (forms_signal) {
            already_checked checks;
            Real x = signal_of(pass, e, constants, checks);
            if constexpr (error_array<ErrorStorage>::exists) {
              x = x + error.load(here);
              error.store(decoded.compression_error_or_announcement(x, here), here);
            } else {
              e.compression_error = decoded.compression_error_or_announcement(x, here);
            }
          } else if constexpr (uses_compression_error) {
            e.compression_error = Real(0.0F);
          }
          e.exchanged = decoded.mean(here);
          apply(pass, e, constants, own);
          arrays.store(typename Pass::writes(), e, here);
        });
    if constexpr (results_v<Pass> != 0) write_results<Pass::sums, maxima_v<Pass>>(team, mine, of_tile);
  }

  // The compression error of the mean over a tile of this rank's chunk.
  template <class Team>
  SLAMB_HOST_DEVICE void keep_server_error(Team& team, std::size_t number) const {
    using quantizer = mean_quantizer_t<Quantizers>;
    const wire_tile w = wire.tiles[number];
    const std::uint32_t count = view.tiles[number].count;
    const tile_active active(wire, w);
    const error_array<ServerStorage> error(wire.server_error, w.code);
    const tile_codes<quantizer, const std::byte> decoded(server_quantizer(quantizers), wire.averaged,
                                                         wire.mean_codes_from(), wire.mean_tile(number));
    const float* const mean = wire.mean + w.code;
    typename Team::template registers<typename Team::template results<0, 0>> unused;
    each_position(
        team, 0, count, unused, true,
        [&](auto at, auto& /*own*/) { error.store(active.keep(load_array(mean, at) - decoded.decode(at), at), at); },
        [&](unsigned thread) {
          for (std::uint32_t i = count + thread; i < padded_codes(count); i += Team::threads) error.clear(i);
        });
  }
};

/// Computes ‖x‖² and ‖x − x̂‖² of each tile. x is this rank's signal, x̂ its decoded codes. Both are 0 for dense tiles.
template <class Storage, class Pass, class Quantizer, class Precision = single_precision>
struct measure_error {
  Pass pass;
  Quantizer quantizer;
  view_of<Pass, Precision> view;
  wire_view wire;
  tile_range tiles;
  double* squares = nullptr;  ///< [all tiles][2]

  std::size_t work() const noexcept { return tiles.last - tiles.first; }

  template <class Team>
  SLAMB_HOST_DEVICE void operator()(Team& team) const {
    if (is_skipped(view.skip)) return;
    for (std::size_t i = tiles.first + team.index(); i < tiles.last; i += team.count()) {
      typename Team::template registers<typename Team::template results<2, 0>> mine;
      if (wire.tiles[i].owner != wire_tile::dense && !is_left_out(wire, view, i)) measure(team, i, mine);
      write_results<2, 0>(team, mine, squares + 2 * i);
    }
  }

 private:
  template <class Team, class Mine>
  SLAMB_HOST_DEVICE void measure(Team& team, std::size_t number, Mine& mine) const {
    const tile t = view.tiles[number];
    const segment& s = view.segments[t.segment];
    using arrays_type = arrays_of_tile<Team, Pass, Precision>;
    const worker_source<Pass, arrays_type, decltype(pass.constants(0)), Storage> source{
        pass,
        pass.constants(t.segment),
        arrays_type(view, s, t, number),
        {wire.worker_error, s.state + t.first},
        {wire, wire.tiles[number]}};
    const decoded_tile<Quantizer> decoded(quantizer, wire, number);
    each_position(team, 0, t.count, mine, true, [&](auto at, auto& own) {
      already_checked checks;
      const auto x = source(at, checks);
      own.add_square(0, x);
      own.add_square(1, decoded.compression_error(x, at));
    });
  }
};

}  // namespace slamb::detail
