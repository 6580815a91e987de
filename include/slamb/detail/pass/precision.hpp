// How arrays are stored: the types of parameters and gradients, and how parameters are rounded to sixteen bits.
//
// Passes compute in floats. A precision gives the types of the pointers by which a backend reads and writes arrays:
//
//     using parameter_pointer, data_pointer, gradient_pointer;
//     using draws;                                // of stochastic rounding; an empty type without
//     static parameter_of(segment, first), data_of(segment, first);
//     static gradient_of(segment, first, scale), exchanged_gradient(const float*);
//
// A tensor without a gradient has the gradient 0: its parameters times 0, because there must be memory to read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

/// `array` from element `first` on, if there is one.
template <class T>
SLAMB_HOST_DEVICE T* from_element(T* array, std::uint64_t first) {
  return array == nullptr ? nullptr : array + first;
}

/// Stands for the draws of a precision that rounds nothing by chance.
struct no_draws {};

/// A gradient: floats, each times `scale`.
struct scaled_floats {
  const float* address;
  float scale;
};

/// All arrays are floats.
struct single_precision {
  static constexpr bool takes_types = false;
  static constexpr bool rounds_by_chance = false;
  using parameter_pointer = float*;
  using data_pointer = const float*;
  using gradient_pointer = scaled_floats;
  using draws = no_draws;

  SLAMB_HOST_DEVICE static float* parameter_of(const segment& s, std::uint64_t first) {
    return from_element(static_cast<float*>(s.data), first);
  }
  SLAMB_HOST_DEVICE static const float* data_of(const segment& s, std::uint64_t first) {
    return parameter_of(s, first);
  }
  SLAMB_HOST_DEVICE static scaled_floats gradient_of(const segment& s, std::uint64_t first, float scale) {
    if (!s.has_gradient) return {data_of(s, first), 0.0F};
    return {from_element(static_cast<const float*>(s.gradient), first), scale};
  }
  SLAMB_HOST_DEVICE static scaled_floats exchanged_gradient(const float* exchanged) { return {exchanged, 1.0F}; }
};

/// Numbers of a type known at run time, which passes read; a gradient is each times `scale`.
struct typed_numbers {
  const void* address;
  element_type type;
};
struct scaled_numbers : typed_numbers {
  float scale;
};

/// The parameters of a tensor: numbers of `type`, which passes read and write. If `rounded` is not null, they are floats, and
/// each is also written there, rounded to the nearest number of `rounded_type`.
struct typed_parameter {
  void* address;
  void* rounded;
  element_type type;
  element_type rounded_type;
};

/// An array of a type known at run time.
template <class T>
concept typed_array = requires(const T& array) {
  array.address;
  array.type;
};

/// The random numbers by which parameters of sixteen bits are rounded. Element i of tensor l in step t has the i mod 8th sixteen
/// bits of philox(seed, i/8 + 2^61 use, 2^32 t + l): the same on every backend and every rank.
struct rounding_draws {
  std::uint64_t seed = 0;
  const std::uint64_t* steps = nullptr;  ///< t − 1, in the backend's memory
  std::uint64_t use = 0;                 ///< distinguishes several roundings of one element in one step: 0 … 7

  SLAMB_HOST_DEVICE std::uint64_t stream(std::uint32_t tensor) const { return ((*steps + 1) << 32U) | tensor; }
  SLAMB_HOST_DEVICE std::uint64_t counter(std::uint64_t element) const { return (use << 61U) | element / 8; }
};

/// Parameters and gradients of a type known at run time, for each tensor.
/// @tparam Draws  rounding_draws: parameters of sixteen bits without a master copy are rounded by chance
template <class Draws>
struct mixed_precision {
  static constexpr bool takes_types = true;
  static constexpr bool rounds_by_chance = sizeof(Draws) > sizeof(no_draws);
  using parameter_pointer = typed_parameter;
  using data_pointer = typed_numbers;
  using gradient_pointer = scaled_numbers;
  using draws = Draws;

  SLAMB_HOST_DEVICE static typed_parameter parameter_of(const segment& s, std::uint64_t first) {
    void* const data = static_cast<std::byte*>(s.data) + first * bytes_of(s.data_type);
    if (s.master == nullptr) return {data, nullptr, s.data_type, element_type::float32};
    return {s.master + first, data, element_type::float32, s.data_type};
  }
  SLAMB_HOST_DEVICE static typed_numbers data_of(const segment& s, std::uint64_t first) {
    return {static_cast<const std::byte*>(s.data) + first * bytes_of(s.data_type), s.data_type};
  }
  SLAMB_HOST_DEVICE static scaled_numbers gradient_of(const segment& s, std::uint64_t first, float scale) {
    if (!s.has_gradient) return {data_of(s, first), 0.0F};
    return {{static_cast<const std::byte*>(s.gradient) + first * bytes_of(s.gradient_type), s.gradient_type}, scale};
  }
  SLAMB_HOST_DEVICE static scaled_numbers exchanged_gradient(const float* exchanged) {
    return {{exchanged, element_type::float32}, 1.0F};
  }

 private:
  SLAMB_HOST_DEVICE static std::uint64_t bytes_of(element_type type) { return type == element_type::float32 ? 4 : 2; }
};

/// The precision of a backend's arrays: Backend::precision, or single_precision.
template <class Backend>
struct precision_of {
  using type = single_precision;
};
template <class Backend>
requires requires { typename Backend::precision; }
struct precision_of<Backend> {
  using type = typename Backend::precision;
};

}  // namespace slamb::detail
