// NCCL's element types of C++ types. Specialise `nccl_type` to add a type.
#pragma once

#include <nccl.h>

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "slamb/core/bfloat16.hpp"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 14, 0)
#error "slamb needs NCCL 2.14 or newer, the first that has communicators which do not block"
#endif

namespace slamb {

/// The element type `value` of NCCL for T; `is_summable` is true if NCCL can sum it as T. Specialise it so that
/// nccl_communicator accepts a type of yours:
///
///     template <>
///     struct slamb::nccl_type<my_half> {
///       static constexpr ncclDataType_t value = ncclFloat16;
///       static constexpr bool is_summable = true;
///     };
template <class T>
struct nccl_type {};

namespace detail {

template <ncclDataType_t Type, bool Summable = true>
struct nccl_element {
  static constexpr ncclDataType_t value = Type;
  static constexpr bool is_summable = Summable;
};

/// Integers of 8, 32 and 64 bits under any name. NCCL has no 16-bit integers.
template <class T>
concept nccl_integer =
    std::integral<T> && !std::same_as<T, bool> && (sizeof(T) == 1 || sizeof(T) == 4 || sizeof(T) == 8);

template <nccl_integer T>
constexpr ncclDataType_t nccl_integer_type() noexcept {
  if constexpr (sizeof(T) == 1) return std::is_signed_v<T> ? ncclInt8 : ncclUint8;
  if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? ncclInt32 : ncclUint32;
  return std::is_signed_v<T> ? ncclInt64 : ncclUint64;
}

}  // namespace detail

template <detail::nccl_integer T>
struct nccl_type<T> : detail::nccl_element<detail::nccl_integer_type<T>()> {};
template <>
struct nccl_type<std::byte> : detail::nccl_element<ncclUint8, false> {};
template <>
struct nccl_type<float> : detail::nccl_element<ncclFloat32> {};
template <>
struct nccl_type<double> : detail::nccl_element<ncclFloat64> {};

// nccl.h includes CUDA's headers of narrow floats, if both versions know them.
#if defined(__CUDA_FP16_H__)
template <>
struct nccl_type<__half> : detail::nccl_element<ncclFloat16> {};
#endif
#if defined(__CUDA_BF16_H__)
template <>
struct nccl_type<__nv_bfloat16> : detail::nccl_element<ncclBfloat16> {};
template <>
struct nccl_type<bfloat16> : detail::nccl_element<ncclBfloat16> {};
#endif
#if defined(__CUDA_FP8_H__) && NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
template <>
struct nccl_type<__nv_fp8_e4m3> : detail::nccl_element<ncclFloat8e4m3> {};  // sums need compute capability 9.0
template <>
struct nccl_type<__nv_fp8_e5m2> : detail::nccl_element<ncclFloat8e5m2> {};
#endif

namespace detail {

/// Returns `holds`. Compilers print `sentence` with a constraint that is not met.
consteval bool require_that(bool holds, const char* /*sentence*/) { return holds; }

template <class T>
inline constexpr bool has_nccl_type = requires {
  nccl_type<T>::value;
};

template <class T>
inline constexpr bool has_nccl_sum = false;
template <class T>
requires has_nccl_type<T>
inline constexpr bool has_nccl_sum<T> = nccl_type<T>::is_summable;

/// An element type that nccl_communicator can send.
template <class T>
concept nccl_movable = require_that(
    has_nccl_type<T>,
    "NCCL has no element type for these elements: specialise slamb::nccl_type for them, or send them as std::byte");

/// An element type that nccl_communicator can sum.
template <class T>
concept nccl_summable = nccl_movable<T> && require_that(
    has_nccl_sum<T>,
    "elements without arithmetic, such as std::byte, cannot be summed: use a number type, for example std::uint8_t");

}  // namespace detail
}  // namespace slamb
