// The history of a selection, found by asking for every element. Tests of sparsifiers compare with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slamb/compressor/random_k.hpp"
#include "slamb/core/concepts.hpp"

namespace test_support {

using fault = std::optional<std::string>;  // the fault, if there is one

/// One tensor of a layout.
struct place {
  std::uint32_t tensor;
  std::uint64_t size;
  std::uint64_t offset;

  slamb::coordinate at(std::uint64_t index) const { return {tensor, index, size, offset}; }
};

/// The state of a tensor's elements at a step.
struct history {
  std::vector<char> selected;            // at this step
  std::vector<std::uint32_t> age;        // steps since an element was last selected, or since the start
  std::vector<std::uint64_t> before{0};  // number of selected elements before each index, and in all
};

/// Adds one step.
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

/// The elements of a tensor that a compressor selects at a step.
template <class C>
std::vector<char> mask_of(const C& compressor, std::uint64_t step, const place& where) {
  history h;
  remember(h, compressor.at(step), where);
  return h.selected;
}

/// A random_k with C slots, that is with k = 1/C.
template <slamb::sampling Law>
slamb::random_k<Law> of_slots(std::uint32_t slots, std::size_t block = 1, std::uint64_t seed = 1) {
  return {.k = 1.0 / slots, .block = block, .seed = seed};
}

/// The description of a fault and its place.
inline std::string text(const char* what, const place& where, std::uint64_t step, std::uint64_t index) {
  return std::string(what) + " (tensor " + std::to_string(where.tensor) + " of " + std::to_string(where.size) +
         ", step " + std::to_string(step) + ", index " + std::to_string(index) + ")";
}

}  // namespace test_support
