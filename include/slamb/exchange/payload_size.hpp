// How much a recipe exchanges, from sizes alone: which tensors go whole, how large a payload can be, and into which pieces
// the parameters are cut. Recipes and their plans (slamb/plan/) use the same functions, so they cannot come apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/concepts.hpp"
#include "slamb/core/layout.hpp"

namespace slamb {

/// Whether a tensor of `size` elements is exchanged whole at every step.
///
/// @param compress  tensor_options::compress
/// @param dense_below  tensors of fewer elements go whole
constexpr bool goes_whole(std::uint64_t size, bool one_dimensional, bool compress, std::uint64_t dense_below) noexcept {
  return !compress || one_dimensional || size < dense_below;
}

/// The most elements that `c` selects at any step of a tensor of `size`.
template <compressor C>
constexpr std::uint64_t largest_payload_of(const C& c, std::uint64_t size) noexcept {
  if constexpr (requires { c.largest_payload(size); })
    return c.largest_payload(size);
  else
    return size;
}

/// Cuts tiles into consecutive pieces of at most `room` elements, but of one tile at least.
///
/// @param count_of  count_of(i): elements of tile i = 0 … tiles − 1
/// @param visit  visit(tile_range, elements) for each piece, in order
template <class CountOf, class Visit>
void for_each_piece(std::size_t tiles, std::uint64_t room, CountOf count_of, Visit visit) {
  for (tile_range piece{0, 0}; piece.first < tiles; piece.first = piece.last) {
    std::uint64_t elements = 0;
    for (piece.last = piece.first; piece.last < tiles; ++piece.last) {
      const std::uint64_t count = count_of(piece.last);
      if (piece.last > piece.first && elements + count > room) break;
      elements += count;
    }
    visit(piece, elements);
  }
}

}  // namespace slamb
