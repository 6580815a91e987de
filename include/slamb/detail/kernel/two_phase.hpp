// The kernels of a quantized exchange, over tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/messages.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"

namespace slamb::detail {

/// The storage type of errors that are not kept.
struct no_storage {};

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
};

/// Encodes the mean of the ranks' signals over this rank's chunk, or takes the statistics of its scales.
template <encode_mode Work, class Storage, class Quantizers>
struct average_signals {
  Quantizers quantizers;
  model_view view;
  wire_view wire;
  std::span<const std::size_t> own;  ///< the tiles of this rank's chunk
  double* statistic = nullptr;       ///< [all tiles]; used only if tiles share scales and Work is not codes
  read_overflow_flags read_flags{};  ///< invoked first

  std::size_t work() const noexcept { return own.empty() && read_flags.record != nullptr ? 1 : own.size(); }
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
};

}  // namespace slamb::detail
