// A pass around a quantized exchange: it forms this rank's signal, and uses the received mean.
//
// Like a pass (detail/pass/pass.hpp), with these in addition:
//
//     using signal_reads = arrays<…>;               // the arrays of which the signal is formed
//     template <class Element, class Sums>
//     Real signal(const Element& e, const auto& constants, Sums& results) const;  // results.check_finite(…)
//
// operator() finds the received mean of the ranks' signals in e.exchanged. The signal is formed twice: to be sent, and after
// the exchange to find this rank's compression error. Nothing is written in between, so a step that fails or is skipped
// changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

/// The place of one tile's codes.
struct wire_tile {
  static constexpr std::uint32_t dense = std::numeric_limits<std::uint32_t>::max();

  std::uint64_t code = 0;       ///< of its first element in the owner's message; if dense, in the dense buffer
  std::uint64_t scale = 0;      ///< its first scale, counted from the beginning of the owner's message
  std::uint32_t owner = dense;  ///< the rank that averages it; `dense`: exchanged as floats
};

/// Codes are stored in groups of sixteen elements; the bits of active elements are, too.
inline constexpr std::uint32_t code_group = 16;
/// `count` rounded up to whole groups.
SLAMB_HOST_DEVICE constexpr std::uint32_t padded_codes(std::uint32_t count) {
  return (count + code_group - 1) / code_group * code_group;
}

/// The buffers of a compressed exchange. Trivially copyable; pointers are in the backend's memory space. A message is
/// [header][scales][codes], padded as in `wire_layout`. Messages of all ranks follow one another.
struct wire_view {
  const wire_tile* tiles = nullptr;       ///< [tiles]
  std::byte* sent = nullptr;              ///< [ranks][message] the codes of this rank's signal, by owner
  std::byte* received = nullptr;          ///< [ranks][message] the ranks' codes of this rank's chunk; then the result
  std::byte* averaged = nullptr;          ///< [message] the mean over this rank's chunk
  float* dense = nullptr;                 ///< dense signals, end to end
  float* mean = nullptr;                  ///< [codes] the mean over this rank's chunk before it was encoded
  void* worker_error = nullptr;           ///< [state elements] compression error of this rank's signal
  void* server_error = nullptr;           ///< [codes] compression error of the mean of this rank's chunk
  const std::uint16_t* active = nullptr;  ///< [ranks][codes/16] bits of active elements; null: all are active
  bool announces = false;  ///< the codes of inactive elements tell if a rank has a signal for them: see `announcement`
  const std::uint16_t* may_announce = nullptr;  ///< [ranks][codes/16] bits of elements that may; null: all may
  std::uint64_t codes = 0;                      ///< of a message
  std::uint64_t message_bytes = 0;
  std::uint64_t codes_at = 0;       ///< bytes of a message in front of its codes
  std::uint64_t random_stream = 0;  ///< of this rank's stochastic rounding: see `stream`
  const std::uint64_t* steps =
      nullptr;  ///< t − 1, a part of the counter of random draws; null: draws are equal at every step
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;          ///< this one
  bool follows_gradients = false;  ///< tensors without a gradient are left out, as in the pass that the exchange is for
  const std::uint8_t* takes_part = nullptr;  ///< [tensors] 0: the tensor is left out; null: none is
  const wire_tile* mean_tiles = nullptr;  ///< [tiles] in messages of the mean, if these have another quantizer; or null
  std::uint64_t mean_message_bytes = 0;   ///< likewise
  std::uint64_t mean_codes_at = 0;        ///< likewise
  std::uint64_t dense_elements = 0;       ///< [dense] for counts of memory traffic

  /// The stream of this step's random draws.
  SLAMB_HOST_DEVICE std::uint64_t stream() const {
    return steps == nullptr ? random_stream : ((*steps + 1) << 16U) | random_stream;
  }

  /// The place of a tile in messages of the mean.
  SLAMB_HOST_DEVICE wire_tile mean_tile(std::size_t number) const {
    return mean_tiles == nullptr ? tiles[number] : mean_tiles[number];
  }
  SLAMB_HOST_DEVICE std::uint64_t bytes_of_mean_message() const {
    return mean_tiles == nullptr ? message_bytes : mean_message_bytes;
  }
  SLAMB_HOST_DEVICE std::uint64_t mean_codes_from() const { return mean_tiles == nullptr ? codes_at : mean_codes_at; }
};

/// An inactive element has no value on the wire, but a code. A rank with a signal for it encodes this number in its place, a rank
/// without one 0. The quantizer has `keeps_sign`, and the number is too small to change a scale. The rank that averages passes it on.
/// docs/algorithms/update_bound.md, "Late elements".
inline constexpr float announcement = -0x1p-126F;
/// The received value of an inactive element for which any rank has a signal. Its square is 0, and itself it is not. Positive, so
/// that a momentum of it has the sign of a zero.
inline constexpr float announced_value = 0x1p-100F;

/// True if codes of this quantizer can announce the signals of elements that are inactive because their variance is 0.
template <class Quantizer>
inline constexpr bool can_announce = requires(const Quantizer& q) {
  q.zero_aware;
  requires Quantizer::keeps_sign;
};

/// The quantizers of an exchange whose phases differ. Functions that take a quantizer take this too.
template <class Signal, class Mean>
struct worker_and_server {
  Signal signal;  ///< of the ranks' signals
  Mean mean;      ///< of their mean
};

// The quantizer of a phase.
template <class Quantizer>
SLAMB_HOST_DEVICE const Quantizer& worker_quantizer(const Quantizer& both) {
  return both;
}
template <class Signal, class Mean>
SLAMB_HOST_DEVICE const Signal& worker_quantizer(const worker_and_server<Signal, Mean>& q) {
  return q.signal;
}
template <class Quantizer>
SLAMB_HOST_DEVICE const Quantizer& server_quantizer(const Quantizer& both) {
  return both;
}
template <class Signal, class Mean>
SLAMB_HOST_DEVICE const Mean& server_quantizer(const worker_and_server<Signal, Mean>& q) {
  return q.mean;
}
template <class Quantizers>
using signal_quantizer_t = std::remove_cvref_t<decltype(worker_quantizer(std::declval<const Quantizers&>()))>;
template <class Quantizers>
using mean_quantizer_t = std::remove_cvref_t<decltype(server_quantizer(std::declval<const Quantizers&>()))>;

/// True if the exchange leaves out the tensor of this tile: its codes are neither written nor read, and its errors stay. Its
/// statistic is negative, so that scales that tensors share do not count its elements.
SLAMB_HOST_DEVICE inline bool is_left_out(const wire_view& wire, const model_view& view, std::size_t tile_number) {
  const std::uint32_t tensor = view.tiles[tile_number].segment;
  return (wire.follows_gradients && !view.segments[tensor].has_gradient) ||
         (wire.takes_part != nullptr && wire.takes_part[tensor] == 0);
}

/// The work of encoding a tile.
enum class encode_mode {
  statistics,           ///< computes only the statistic of the scale
  codes,                ///< encodes with a known scale
  statistics_and_codes  ///< encodes and computes the statistic, or the scale of each block
};

/// tensor_options::rows of one tensor, in the backend's memory.
struct row_mask {
  const std::uint8_t* rows = nullptr;  ///< [count] 0: the row is inactive
  std::uint64_t count = 0;             ///< 0: all rows are active
};

/// A pass whose exchange is the identity, for a single rank.
template <class Pass>
struct pass_with_own_signal : Pass {
  using reads = union_of_t<typename Pass::reads, typename Pass::signal_reads>;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& constants, Sums& results) const {
    e.exchanged = Pass::signal(e, constants, results);
    if constexpr (requires { Pass::uses_compression_error; }) e.compression_error = typename Element::real(0.0F);
    Pass::operator()(e, constants, results);
  }
};

/// Checks that the signal is finite.
template <class Pass>
struct check_signal : Pass {
  using reads = typename Pass::signal_reads;
  using writes = arrays<>;
  using works_on = typename arrays_of<Pass>::type;
  static constexpr int sums = 0;
  static constexpr int maxima = 0;

  template <class Element, class Constants, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Constants& constants, Sums& results) const {
    Pass::signal(e, constants, results);
  }
};

}  // namespace slamb::detail
