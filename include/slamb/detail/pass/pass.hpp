// A pass: one element function applied to every element, with the arrays it touches declared beside it.
//
// Recipes are written as a few passes; a backend runs any of them and knows none. A pass is a trivially copyable
// struct with
//
//     static constexpr unsigned reads, writes;        // streams, or-ed
//     static constexpr int sums;                      // double-precision sums a tensor
//     static constexpr int maxima;                    // largest values a tensor; may be left out for none
//     auto constants(std::uint32_t segment) const;    // what is constant within a tensor
//     template <class Real, class Sums>
//     void operator()(element<Real>& e, const auto& constants, Sums& results) const;
//
// From the declaration follow the bytes of memory traffic an element, which the benchmarks divide by the time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

/// The arrays a pass can read or write.
namespace stream {
inline constexpr unsigned parameter = 1U << 0U;
inline constexpr unsigned gradient = 1U << 1U;
inline constexpr unsigned momentum = 1U << 2U;
inline constexpr unsigned variance = 1U << 3U;
inline constexpr unsigned exchanged = 1U << 4U;
inline constexpr unsigned fresh_variance = 1U << 5U;
inline constexpr unsigned accumulated = 1U << 6U;
inline constexpr unsigned common = 1U << 7U;
inline constexpr unsigned residual = 1U << 8U;
inline constexpr unsigned position = 1U << 9U;  // which lies in no memory, and can only be read
}  // namespace stream

/// Bytes of memory traffic an element of pass P.
template <class P>
constexpr double bytes_per_element() noexcept {
  return static_cast<double>(sizeof(float)) * (std::popcount(P::reads & ~stream::position) + std::popcount(P::writes));
}

/// How many largest values pass P takes of each tensor.
template <class P>
constexpr int maxima_of() noexcept {
  if constexpr (requires { P::maxima; })
    return P::maxima;
  else
    return 0;
}

/// Doubles a tile that a pass leaves: its sums, then its largest values.
template <class P>
constexpr int results_of() noexcept {
  return P::sums + maxima_of<P>();
}

/// Where the arrays are. Trivially copyable; pointers are in the backend's memory space.
struct model_view {
  const segment* segments = nullptr;        ///< [tensors]
  const tile* tiles = nullptr;              ///< [tiles]
  const std::size_t* first_tile = nullptr;  ///< [tensors + 1] the number of each tensor's first tile; then of all
  float* momentum = nullptr;                ///< [state elements]
  float* variance = nullptr;                ///< [state elements]
  float* exchanged = nullptr;  ///< the exchange buffer: elements exchanged_first … of all tensors, end to end
  std::uint64_t exchanged_first = 0;
  float* fresh_variance = nullptr;         ///< [state elements]
  float* accumulated = nullptr;            ///< [state elements]
  float* common = nullptr;                 ///< [state elements]
  float* residual = nullptr;               ///< [state elements]
  bool gradient_is_exchanged = false;      ///< `gradient` is read from the exchange buffer
  const std::uint32_t* refused = nullptr;  ///< where it points to is not 0: the step must not happen, passes do nothing
};

/// The arrays of one tile, each from its first element; null where there is none.
struct tile_pointers {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* momentum = nullptr;
  float* variance = nullptr;
  float* exchanged = nullptr;
  float* fresh_variance = nullptr;
  float* accumulated = nullptr;
  float* common = nullptr;
  float* residual = nullptr;
  std::uint32_t position = 0;  ///< of the first element: see `element::position`

  SLAMB_HOST_DEVICE tile_pointers(float* p, float* m, float* v) : parameter(p), momentum(m), variance(v) {}

  SLAMB_HOST_DEVICE tile_pointers(const model_view& view, const segment& s, const tile& t)
      : parameter(at(s.parameter, t.first)),
        gradient(at(s.gradient, t.first)),
        momentum(at(view.momentum, s.state + t.first)),
        variance(at(view.variance, s.state + t.first)),
        exchanged(at(view.exchanged, s.first + t.first - view.exchanged_first)),
        fresh_variance(at(view.fresh_variance, s.state + t.first)),
        accumulated(at(view.accumulated, s.state + t.first)),
        common(at(view.common, s.state + t.first)),
        residual(at(view.residual, s.state + t.first)),
        position(static_cast<std::uint32_t>(t.first) & 0xFFFFFFU) {
    if (view.gradient_is_exchanged) gradient = exchanged;
  }

  template <class T>
  SLAMB_HOST_DEVICE static T* at(T* array, std::uint64_t first) {
    return array == nullptr ? nullptr : array + first;
  }
};

/// What a pass derives from that has no constants by tensor.
struct pass_without_constants {
  struct no_constants {};

  SLAMB_HOST_DEVICE static no_constants constants(std::uint32_t /*segment*/) { return {}; }
};

}  // namespace slamb::detail
