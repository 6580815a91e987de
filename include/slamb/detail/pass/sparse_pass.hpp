// A sparse pass: a pass over selected and unselected elements, for any sparsifier.
//
// Like a pass (detail/pass/pass.hpp), with these in addition:
//
//     using packs = arrays<…>;              // arrays whose selected values go to the planes of the payload, in this order
//     static constexpr bool receives;       // e.exchanged of selected elements is read from the first payload plane
//     static constexpr bool receives_compression_error;  // optional: e.compression_error is read from the second plane, or 0
//     static constexpr bool needs_discount;
//     template <class Element, class Lanes, class Sums>
//     void operator()(Element& e, const Lanes& at, const auto& constants, Sums& results) const;
//
// A pass that packs sums over the elements that are not selected. Selected elements are summed after the exchange, by a pass over
// the payload, which reads the arrays of its `reads` from it, in that order.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

/// The selection of sixteen elements, or of one, for an element function.
template <class Real, class Mask>
struct selected_lanes {
  Mask selected;  ///< exchanged at this step
  Real discount;  ///< β3^age
};

/// Pointers to the payload. Trivially copyable; in the backend's memory.
struct payload_view {
  const std::uint64_t* tile_offsets = nullptr;  ///< [tiles + 1] the first payload element of each tile
  float* plane[3] = {};                         ///< [payload] each; the first is exchanged
  capability::staleness_discounts discount{};   ///< β3^age
  void* age = nullptr;                          ///< [state elements] stored_age_t, for selections without ages
  std::uint64_t capacity = 0;                   ///< elements of the first plane; a device that packs it clears the rest
};

/// A selection that is made on the device, which knows the number of the step.
template <class Selection>
struct stored_selection {
  const Selection* at;  ///< in the backend's memory

  SLAMB_HOST_DEVICE const Selection& resolve() const { return *at; }
};

/// Makes the selection of a `stored_selection`; for a launcher to invoke.
template <class Steps, class Selection>
struct store_selection {
  Steps steps;                 ///< the sparsifier, or the constants of all its steps
  const std::uint64_t* taken;  ///< t − 1
  Selection* to;

  SLAMB_HOST_DEVICE void operator()() const { *to = steps.at(*taken + 1); }
};

/// The selection itself, from a selection or a `stored_selection`.
template <class Selection>
SLAMB_HOST_DEVICE const Selection& resolved(const Selection& given) {
  return given;
}
template <class Selection>
SLAMB_HOST_DEVICE const Selection& resolved(const stored_selection<Selection>& given) {
  return given.resolve();
}
template <class Given>
using resolved_t = std::remove_cvref_t<decltype(resolved(std::declval<const Given&>()))>;

/// The coordinate of element `index` of a tensor.
SLAMB_HOST_DEVICE inline coordinate coordinate_of(const segment& s, std::uint32_t tensor, std::uint64_t index) {
  return {tensor, index, s.size, s.first, s.state};
}

/// The selection of a bitmap: bit i is for element i of the state arrays. The optimizer stores ages.
struct bitmap_selection {
  using age_type = std::uint16_t;  // an element may be left out for any number of steps

  const std::uint16_t* bits = nullptr;  ///< [state elements / 16]

  SLAMB_HOST_DEVICE bool selects(coordinate c) const {
    const std::uint64_t i = c.state + c.index;
    return ((bits[i / 16] >> (i % 16)) & 1U) != 0;
  }

  /// A bit for each of `count` ≤ 16 elements from c on: 1 if selected.
  SLAMB_HOST_DEVICE std::uint32_t word(coordinate c, std::uint32_t count) const {
    const std::uint64_t i = c.state + c.index;
    const auto from = static_cast<std::uint32_t>(i % 16);
    std::uint32_t all = static_cast<std::uint32_t>(bits[i / 16]) >> from;
    if (from + count > 16) all |= static_cast<std::uint32_t>(bits[i / 16 + 1]) << (16 - from);
    return all & ((1U << count) - 1U);
  }

  template <class Visit>
  void runs(coordinate c, std::uint64_t count, Visit&& visit) const {
    for (const std::uint64_t end = c.index + count; c.index != end; ++c.index)
      visit(c.index, std::uint64_t{1}, selects(c) ? 0U : 1U);
  }

  bool fill(coordinate c, std::uint32_t count, capability::staleness_discounts /*table*/, std::uint16_t* to,
            float* /*none*/) const {
    for (std::uint32_t i = 0; i < count; i += 16, c.index += 16)
      to[i / 16] = static_cast<std::uint16_t>(word(c, std::min(count - i, 16U)));
    return true;
  }
};
static_assert(capability::has_fill<bitmap_selection>);

}  // namespace slamb::detail
