// A model of any size with the shapes of BERT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../shapes.hpp"

namespace bench::distributed {

/// Tensors with `parameters` elements in all: encoder layers of BERT, then an embedding of the same width, and a bias with the
/// rest. The width is the largest power of two in [16, 1024] for which two layers fit; there are as many layers as fit.
constexpr std::vector<tensor_shape> tensors_of(std::uint64_t parameters) {
  const auto layer_elements = [](std::uint64_t width) { return 12 * width * width + 13 * width; };
  std::uint64_t width = 1024;
  while (width > 16 && 2 * layer_elements(width) > parameters) width /= 2;

  std::vector<tensor_shape> all;
  std::uint64_t left = parameters;
  for (; left >= layer_elements(width); left -= layer_elements(width)) bench::detail::append_encoder_layer(all, width);
  if (left >= width) all.push_back({left / width, width});
  if (left % width > 0) all.push_back({left % width});
  return all;
}

static_assert(bench::detail::elements_of(tensors_of(1000)) == 1000);
static_assert(bench::detail::elements_of(tensors_of(12'000'000)) == 12'000'000);
static_assert(tensors_of(12'000'000).size() == 3 * 16 + 2 && tensors_of(12'000'000).front().columns == 512);

}  // namespace bench::distributed
