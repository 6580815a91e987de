// Runs a pass over one tile after the exchange of its signal: decodes the mean over ranks, finds this rank's compression error
// and applies the pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slamb/backend/host/detail/quantized_tile_runner.hpp"

namespace slamb::detail::host {
inline namespace SLAMB_SIMD_NAMESPACE {

/// A quantized tile after the exchange: the codes of the mean over ranks, and of this rank's own signal.
template <class Quantizers>
struct decoded_tile {
  const Quantizers& quantizers;
  tile_active active;
  tile_codes<signal_quantizer_t<Quantizers>, const std::byte> sent;
  tile_codes<mean_quantizer_t<Quantizers>, const std::byte> result;

  decoded_tile(const Quantizers& q, const wire_view& wire, std::size_t number)
      : quantizers(q),
        active(wire, wire.tiles[number]),
        sent(wire.sent + wire.tiles[number].owner * wire.message_bytes, wire, wire.tiles[number]),
        result(wire.received + wire.tiles[number].owner * wire.bytes_of_mean_message(), wire.mean_codes_from(),
               wire.mean_tile(number)) {}

  SLAMB_ALWAYS_INLINE f32x16 masked(const f32x16& x, std::uint32_t i) const {
    return active.bits == nullptr ? x : select(mask_of(active.bits[i / lanes]), x, f32x16(0.0F));
  }
  SLAMB_ALWAYS_INLINE f32x16 mean(std::uint32_t i) const {
    const auto& quantizer = server_quantizer(quantizers);
    const f32x16 decoded = masked(result.decode(quantizer, i, result.scale_at(quantizer, i)), i);
    if constexpr (can_announce<mean_quantizer_t<Quantizers>>)
      if (const std::uint32_t which = active.announcing(i); which != 0) {
        const lane_mask announced = result.decode(quantizer, i, f32x16(1.0F)) < f32x16(0.0F);
        return select(mask_of(which), select(announced, f32x16(announced_value), f32x16(0.0F)), decoded);
      }
    return decoded;
  }
  // x minus its decoded codes; 0 for inactive elements, and all of x if they announce it.
  SLAMB_ALWAYS_INLINE f32x16 compression_error(const f32x16& x, std::uint32_t i) const {
    const auto& quantizer = worker_quantizer(quantizers);
    const f32x16 lost = masked(x - sent.decode(quantizer, i, sent.scale_at(quantizer, i)), i);
    const std::uint32_t which = active.announcing(i);
    return which == 0 ? lost : select(mask_of(which), x, lost);
  }
};

/// A dense tile after the exchange: the mean over ranks, from the sum of their signals.
struct unmasked_tile {
  const float* sum;
  f32x16 per_rank;

  SLAMB_ALWAYS_INLINE f32x16 mean(std::uint32_t i) const { return per_rank * f32x16::load(sum + i); }
  SLAMB_ALWAYS_INLINE f32x16 mean(std::uint32_t i, int count) const { return per_rank * f32x16::load(sum + i, count); }
};

/// Stands for the sums when a signal is formed again. The signal was checked when it was sent.
struct already_checked {
  SLAMB_ALWAYS_INLINE static void check_finite(const f32x16& /*x*/) {}
};

/// Runs the pass over sixteen elements of a decoded tile, or over fewer: Count… is empty, or their number.
template <class Storage, class Pass, class Constants, class Arrays, class Sums, class Quantizer, class... Count>
SLAMB_ALWAYS_INLINE void receive_lanes(const Pass& pass, const Constants& constants, const Arrays& at,
                                       const error_array<Storage>& error, const decoded_tile<Quantizer>& decoded,
                                       std::uint32_t i, Sums& sums, Count... count) {
  element_of<Pass, f32x16> e;
  already_checked checks;
  if constexpr (error_array<Storage>::exists) {
    at.load(union_of_t<typename Pass::reads, typename Pass::signal_reads>(), e, i, count...);
    const f32x16 x = pass.signal(e, constants, checks) + error.load(i, count...);
    error.store(decoded.compression_error(x, i), i, count...);
  } else if constexpr (requires { Pass::uses_compression_error; }) {
    at.load(union_of_t<typename Pass::reads, typename Pass::signal_reads>(), e, i, count...);
    e.compression_error = decoded.compression_error(pass.signal(e, constants, checks), i);
  } else {
    at.load(typename Pass::reads(), e, i, count...);
  }
  e.exchanged = decoded.mean(i);
  pass(e, constants, sums);
  at.store(typename Pass::writes(), e, i, count...);
}

/// Runs `pass` over a tile with the mean of the ranks' signals, and stores this rank's error. Writes the sums and maxima of the
/// pass to `results` [results_of<Pass>()]. Works with variables of its own, as `run_elements`.
template <class Storage, class Pass, class Quantizer, class View>
SLAMB_FLATTEN void receive_tile(const Pass& its_pass, const Quantizer& quantizer, const View& view,
                                const wire_view& wire, std::size_t tile_number, double* results) {
  const Pass pass = its_pass;
  const tile t = view.tiles[tile_number];
  const wire_tile w = wire.tiles[tile_number];
  const segment& s = view.segments[t.segment];
  if (is_left_out(wire, view, tile_number)) return leave_out<Pass>(view, s, t, results);
  const tile_arrays_of<Pass, View> at(view, s, t, tile_number);
  const auto constants = pass.constants(t.segment);
  sums_of<Pass> sums;
  std::uint32_t i = 0;
  const auto rest_sums = [&] { return masked_sums_of<Pass>{sums, mask_of((1U << (t.count - i)) - 1U)}; };
  if (w.owner == wire_tile::dense) {
    const unmasked_tile dense{wire.dense + w.code, f32x16(1.0F / static_cast<float>(wire.ranks))};
    const auto receive = [&](auto& its_sums, auto... count) {
      element_of<Pass, f32x16> e;
      at.load(typename Pass::reads(), e, i, count...);
      e.exchanged = dense.mean(i, count...);
      if constexpr (requires { Pass::uses_compression_error; }) e.compression_error = f32x16(0.0F);
      pass(e, constants, its_sums);
      at.store(typename Pass::writes(), e, i, count...);
    };
    for (; i + lanes <= t.count; i += lanes) receive(sums);
    if (auto of_rest = rest_sums(); i < t.count) receive(of_rest, static_cast<int>(t.count - i));
  } else {
    const error_array<Storage> error(wire.worker_error, s.state + t.first);
    const decoded_tile<Quantizer> decoded(quantizer, wire, tile_number);
    for (; i + lanes <= t.count; i += lanes) receive_lanes(pass, constants, at, error, decoded, i, sums);
    if (auto of_rest = rest_sums(); i < t.count)
      receive_lanes(pass, constants, at, error, decoded, i, of_rest, static_cast<int>(t.count - i));
  }
  sums.write(results);
}

/// Lets `compressor` choose elements of a tile by the values that `pass` forms. A dense tensor needs no choice. Returns false,
/// without a choice, if a value is not finite.
template <class Pass, class Compressor, class View>
bool choose_in_tile(const Pass& pass, const Compressor& compressor, const View& view, std::size_t tile_number,
                    std::uint16_t* bits) {
  const tile& t = view.tiles[tile_number];
  const segment& s = view.segments[t.segment];
  if (s.dense || leaves_out<Pass>(s)) return true;
  tile_sums<0> checks;
  const worker_source<Pass, View, decltype(pass.constants(0)), no_storage> source{
      pass,  pass.constants(t.segment), tile_arrays_of<Pass, View>(view, s, t, tile_number), {nullptr, 0}, {{}, {}},
      checks};
  alignas(64) float value[layout::tile_size];
  by_lanes(0, t.count, [&](std::uint32_t i, auto... number) { source(i, number...).store(value + i); });
  if (!checks.all_finite()) return false;
  compressor.choose(value, t.count, bits + (s.state + t.first) / lanes);
  return true;
}

/// Computes `squares` [2]: ‖x‖² and ‖x − x̂‖² of a tile, with this rank's signal x and the value x̂ of its codes. Both are 0 for
/// a dense tile.
template <class Storage, class Pass, class Quantizer, class View>
SLAMB_FLATTEN void measure_tile(const Pass& pass, const Quantizer& quantizer, const View& view, const wire_view& wire,
                                std::size_t tile_number, double* squares) {
  const tile t = view.tiles[tile_number];
  const wire_tile w = wire.tiles[tile_number];
  const segment& s = view.segments[t.segment];
  squares[0] = squares[1] = 0.0;
  if (w.owner == wire_tile::dense || is_left_out(wire, view, tile_number)) return;
  tile_sums<0> unused;
  const worker_source<Pass, View, decltype(pass.constants(0)), Storage> source{
      pass,
      pass.constants(t.segment),
      tile_arrays_of<Pass, View>(view, s, t, tile_number),
      {wire.worker_error, s.state + t.first},
      {wire, w},
      unused};
  const decoded_tile<Quantizer> decoded(quantizer, wire, tile_number);
  double_sum signal, compression_error;
  by_lanes(0, t.count, [&](std::uint32_t i, auto... number) {
    const f32x16 x = source(i, number...);
    signal.add_square(x);
    compression_error.add_square(source.active.keep(decoded.compression_error(x, i), i, number...));
  });
  squares[0] = signal.total();
  squares[1] = compression_error.total();
}

}  // namespace SLAMB_SIMD_NAMESPACE
}  // namespace slamb::detail::host
