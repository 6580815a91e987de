// Bytes of memory traffic of a pass, from the lists of arrays that it reads and writes.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include "slamb/core/storage_bytes.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail {

/// Bytes read of one element of an array.
template <class Array>
constexpr double bytes_read(const plan::storage_bytes& stored) noexcept {
  if constexpr (std::is_void_v<typename Array::stored>)
    return 0.0;
  else if constexpr (std::is_same_v<Array, array::parameter>)
    return stored.parameter;
  else if constexpr (std::is_same_v<Array, array::data>)
    return stored.data;
  else if constexpr (std::is_same_v<Array, array::gradient>)
    return stored.gradient;
  else if constexpr (requires { Array::name; })
    return stored.of(Array::name);
  else
    return sizeof(float);
}

/// Bytes written of one element of an array.
template <class Array>
constexpr double bytes_written(const plan::storage_bytes& stored) noexcept {
  return bytes_read<Array>(stored) + (std::is_same_v<Array, array::parameter> ? stored.rounded : 0.0);
}

/// Bytes of one element of all arrays of a list.
template <class List>
struct bytes_of_list;
template <class... Arrays>
struct bytes_of_list<arrays<Arrays...>> {
  static constexpr double read(const plan::storage_bytes& stored) noexcept {
    return (0.0 + ... + bytes_read<Arrays>(stored));
  }
  static constexpr double written(const plan::storage_bytes& stored) noexcept {
    return (0.0 + ... + bytes_written<Arrays>(stored));
  }
};

/// Bytes of memory traffic an element of pass P.
template <class P>
constexpr double bytes_per_element(const plan::storage_bytes& stored = {}) noexcept {
  return bytes_of_list<typename P::reads>::read(stored) + bytes_of_list<typename P::writes>::written(stored);
}

/// Bytes of the arrays of a storage_list.
template <class List>
inline constexpr std::array<plan::array_bytes, 0> bytes_of_arrays{};
template <class... Arrays, class... Storages>
inline constexpr std::array<plan::array_bytes, sizeof...(Arrays)>
    bytes_of_arrays<storage_list<stored_as<Arrays, Storages>...>>{
        plan::array_bytes{Arrays::name, bytes_of_storage<typename stored_as<Arrays, Storages>::storage>}...};

}  // namespace slamb::detail
