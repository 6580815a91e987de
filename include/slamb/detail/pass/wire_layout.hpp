// The layout of a quantized exchange on the wire: the rank that averages each element, and the places of codes and scales in its
// message. It depends on sizes alone, so that plans count bytes with the same code.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

/// The elements that share a scale: docs/algorithms/one_bit_exchange.md, "Scales".
struct scale_granularity {
  enum kind { none, fused, per_tensor, blocks };

  kind of = fused;
  std::uint32_t block = 0;  ///< elements, of blocks
  std::uint32_t bytes = 4;  ///< of a scale: a float, or a byte
};

/// The sharing of scales of `q`.
template <quantizer Q>
constexpr scale_granularity granularity_of(const Q& q) noexcept {
  if constexpr (Q::scale == segment_scale::none)
    return {scale_granularity::none, 0};
  else if constexpr (requires { q.block; })
    return {scale_granularity::blocks, static_cast<std::uint32_t>(q.block),
            capability::sends_scales_in_bytes<Q> ? 1U : 4U};
  else
    return {q.scales == scale_sharing::fused ? scale_granularity::fused : scale_granularity::per_tensor, 0};
}

/// The elements that are cut into N chunks: all tensors laid end to end, or those of each tensor.
enum class chunks_of { all_tensors, each_tensor };

/// The cuts that scales demand.
constexpr chunks_of chunks_with(scale_granularity scales) noexcept {
  return scales.of == scale_granularity::per_tensor ? chunks_of::each_tensor : chunks_of::all_tensors;
}

/// The cuts of an exchange whose phases have these quantizers.
template <quantizer Signal, quantizer Mean>
constexpr chunks_of common_chunks(const Signal& signal, const Mean& mean) noexcept {
  const chunks_of of_mean = chunks_with(granularity_of(mean));
  return of_mean == chunks_of::each_tensor ? of_mean : chunks_with(granularity_of(signal));
}

/// A tensor in the layout.
struct wire_tensor {
  std::uint64_t size = 0;  ///< elements
  bool compressed = true;  ///< false: exchanged dense, in addition to the codes
};

/// A piece of a tensor that one rank averages.
struct wire_piece : tile_cut {
  static constexpr std::uint32_t dense = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t owner = dense;  ///< the rank that averages it; `dense`: exchanged as floats
  std::uint64_t code = 0;       ///< of its first element in the owner's message; if dense, in the dense buffer
  std::uint64_t scale = 0;      ///< its first scale, counted from the beginning of the owner's message
};

/// The layout for N ranks. Each rank owns a chunk of ⌈n/(128 N)⌉·128 elements: of all tensors laid end to end, or, with one scale
/// per tensor, of each tensor. The last chunks may be short or empty. A layout without scales can follow either cut: then it has
/// the pieces of another layout, and codes at the same numbers, in messages of its own size.
///
/// A message is [header: 16 bytes][scales: floats or bytes, none or at least one, padded to 16 bytes][codes: those of each piece from a multiple of 16][padding, so
/// that all of it is a multiple of 128 bytes]. All messages have the same size, so that all are aligned if the first one is.
class wire_layout {
 public:
  static constexpr std::uint64_t chunk_unit = 128;    ///< elements
  static constexpr std::uint64_t code_unit = 16;      ///< codes
  static constexpr std::uint64_t scale_unit = 16;     ///< bytes
  static constexpr std::uint64_t message_unit = 128;  ///< bytes
  static constexpr std::uint64_t header_bytes = 16;   ///< of a `message_header`

  wire_layout() = default;

  /// @param bits  bits of a code
  wire_layout(std::span<const wire_tensor> tensors, int ranks, scale_granularity scales, int bits) {
    assign(tensors, ranks, scales, bits, chunks_with(scales));
  }
  /// @param chunks  those of another layout; `scales` must not demand others
  wire_layout(std::span<const wire_tensor> tensors, int ranks, scale_granularity scales, int bits, chunks_of chunks) {
    assign(tensors, ranks, scales, bits, chunks);
  }

  /// Makes the layout again. Allocates only if there are more pieces than before.
  void assign(std::span<const wire_tensor> tensors, int ranks, scale_granularity scales, int bits) {
    assign(tensors, ranks, scales, bits, chunks_with(scales));
  }
  void assign(std::span<const wire_tensor> tensors, int ranks, scale_granularity scales, int bits, chunks_of chunks);

  std::span<const wire_piece> pieces() const noexcept { return pieces_; }  ///< in the order of the elements
  std::uint64_t ranks() const noexcept { return ranks_; }                  ///< N
  scale_granularity scales() const noexcept { return scales_; }
  chunks_of chunks() const noexcept { return chunks_; }
  std::uint64_t elements() const noexcept { return elements_; }                         ///< compressed
  std::uint64_t dense_elements() const noexcept { return dense_elements_; }             ///< exchanged dense
  std::uint64_t codes() const noexcept { return codes_; }                               ///< of a message, with padding
  std::uint64_t first_scale() const noexcept { return header_bytes / scales_.bytes; }   ///< counted in scales
  std::uint64_t codes_at() const noexcept { return codes_at_; }                         ///< bytes in front of the codes
  std::uint64_t message_bytes() const noexcept { return message_bytes_; }               ///< with padding
  std::uint64_t all_message_bytes() const noexcept { return ranks_ * message_bytes_; }  ///< of either phase

 private:
  struct end {
    std::uint64_t codes = 0;
    std::uint64_t scales = 0;
  };

  static constexpr std::uint64_t padded(std::uint64_t size, std::uint64_t unit) noexcept {
    return (size + unit - 1) / unit * unit;
  }

  std::uint64_t chunk_of(std::uint64_t elements) const noexcept;

  // Cuts a tensor with `before` elements in front of it at the ends of chunks.
  void cut(std::uint32_t tensor, std::uint64_t size, std::uint64_t before, std::uint64_t chunk);

  std::uint64_t ranks_ = 1;
  scale_granularity scales_;
  chunks_of chunks_ = chunks_of::all_tensors;
  std::vector<wire_piece> pieces_;
  std::vector<end> ends_;  // [ranks]
  std::uint64_t elements_ = 0;
  std::uint64_t dense_elements_ = 0;
  std::uint64_t codes_ = 0;
  std::uint64_t codes_at_ = header_bytes;
  std::uint64_t message_bytes_ = message_unit;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/pass/wire_layout.ipp"
#endif
