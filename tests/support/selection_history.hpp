// What a selection has selected step by step, found by asking for every element: what tests of sparsifiers compare with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slamb/compressor/random_k.hpp"
#include "slamb/core/concepts.hpp"

namespace test_support {

using fault = std::optional<std::string>;  // what is wrong, if anything is

/// One tensor of a layout.
struct place {
  std::uint32_t tensor;
  std::uint64_t size;
  std::uint64_t offset;

  slamb::coordinate at(std::uint64_t index) const { return {tensor, index, size, offset}; }
};

/// What a tensor's elements have been through up to a step.
struct history {
  std::vector<char> selected;            // at this step
  std::vector<std::uint32_t> age;        // steps since an element was last selected; since the start, if it never was
  std::vector<std::uint64_t> before{0};  // how many are selected before each index, and in all
};

/// One more step.
template <class Selection>
void remember(history& h, const Selection& selection, const place& where) {
  h.age.resize(where.size, 0);
  h.selected.assign(where.size, 0);
  h.before.assign(1, 0);
  for (std::uint64_t i = 0; i < where.size; ++i) {
    const bool sent = selection.selects(where.at(i));
    h.selected[i] = sent ? 1 : 0;
    h.age[i] = sent ? 0 : h.age[i] + 1;
    h.before.push_back(h.before.back() + (sent ? 1 : 0));
  }
}

/// What a compressor selects of a tensor at a step.
template <class C>
std::vector<char> mask_of(const C& compressor, std::uint64_t step, const place& where) {
  history h;
  remember(h, compressor.at(step), where);
  return h.selected;
}

/// random_k with C slots, or k = 1/C.
template <slamb::sampling Law>
slamb::random_k<Law> of_slots(std::uint32_t slots, std::size_t block = 1, std::uint64_t seed = 1) {
  return {.k = 1.0 / slots, .block = block, .seed = seed};
}

/// A fault and where it is.
inline std::string text(const char* what, const place& where, std::uint64_t step, std::uint64_t index) {
  return std::string(what) + " (tensor " + std::to_string(where.tensor) + " of " + std::to_string(where.size) +
         ", step " + std::to_string(step) + ", index " + std::to_string(index) + ")";
}

}  // namespace test_support
