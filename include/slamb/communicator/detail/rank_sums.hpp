// Element-wise reduction in rank order. Every communicator that makes sums itself uses it, so all return the same bits.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// An element that ranks can add. Integers wrap around.
template <class T>
concept summable = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

template <summable T>
SLAMB_HOST_DEVICE constexpr T wrapping_sum(T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(static_cast<bits>(a) + static_cast<bits>(b)));
  } else {
    return a + b;
  }
}

/// The accumulator of sums of T. Floats accumulate in double, because gradients of many ranks nearly cancel.
template <class T>
using wide = std::conditional_t<std::is_same_v<T, float>, double, T>;

// Calls of their own, with a constant `Count`, so that compilers vectorise them at -O2.
template <std::size_t Count, class To, class From>
inline void convert_block(To* __restrict to, const From* __restrict from) noexcept {
  for (std::size_t i = 0; i < Count; ++i) to[i] = static_cast<To>(from[i]);
}
template <std::size_t Count, class T>
inline void add_block(wide<T>* __restrict sum, const T* __restrict term) noexcept {
  for (std::size_t i = 0; i < Count; ++i) sum[i] = wrapping_sum(sum[i], static_cast<wide<T>>(term[i]));
}

inline void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

/// Sums elements [begin, end) of all ranks in rank order, floats in double precision and rounded once. `in(rank)`: where
/// a rank's elements are, [end]; `write(first, sums, count)` is called for consecutive parts of the range.
template <class T, class In, class Write>
void sum_over_ranks(int ranks, std::size_t begin, std::size_t end, const In& in, const Write& write) noexcept {
  constexpr std::size_t block = 4096 / sizeof(T);  // stays in the first cache
  alignas(64) T term[block]{};
  alignas(64) wide<T> sum[block];
  for (; begin < end; begin += block) {
    const std::size_t count = std::min(block, end - begin);
    for (int rank = 0; rank < ranks; ++rank) {
      copy_bytes(term, in(rank) + begin, count * sizeof(T));
      if (rank == 0) {
        convert_block<block>(sum, term);
      } else {
        add_block<block, T>(sum, term);
      }
    }
    convert_block<block>(term, sum);
    write(begin, static_cast<const T*>(term), count);
  }
}

}  // namespace slamb::detail
