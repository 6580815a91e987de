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

/// Makes the selection of a `stored_selection`; for an executor to invoke.
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

}  // namespace slamb::detail
