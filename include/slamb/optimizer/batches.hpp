// Tensors in batches that fit the cache together, so that a second pass over a batch finds it there.
#pragma once

#include <cstddef>
#include <vector>

#include "slamb/core/layout.hpp"

namespace slamb {

/// Tensors first … last − 1, and their tiles.
struct tensor_batch {
  std::size_t first, last;
  tile_range tiles;
};

/// All tensors, in order. One that is too large for the cache is a batch alone.
///
/// @param bytes  that the passes touch of an element
inline std::vector<tensor_batch> batches_of(const layout& tensors, std::size_t cache_bytes, std::size_t bytes) {
  std::vector<tensor_batch> all;
  const std::size_t count = tensors.segments().size();
  for (std::size_t first = 0; first < count;) {
    std::size_t last = first, size = 0;
    while (last < count && (last == first || size + tensors.segments()[last].size * bytes <= cache_bytes))
      size += tensors.segments()[last++].size * bytes;
    all.push_back({first, last, {tensors.tiles_of(first).first, tensors.tiles_of(last - 1).last}});
    first = last;
  }
  return all;
}

/// All tensors in one batch, for passes that come once.
inline std::vector<tensor_batch> one_batch_of(const layout& tensors) {
  return {{0, tensors.segments().size(), {0, tensors.tiles().size()}}};
}

}  // namespace slamb
