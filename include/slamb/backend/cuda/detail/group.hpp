// The position of a kernel's elements: one, or a few consecutive ones that a thread processes at a time. Reads and writes their
// numbers in arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/rounding.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"

namespace slamb::detail::cuda {

/// The elements i … i + W − 1 of a tile; i is a multiple of W.
template <unsigned W>
struct group {
  using real = reals<W>;
  using word = words<W>;
  using mask = masks<W>;

  std::uint32_t i;

  // The same elements, counted from another first one: by a multiple of W.
  SLAMB_ELEMENT group from(std::uint32_t first) const { return {i - first}; }
  SLAMB_ELEMENT group moved(std::uint32_t by) const { return {i + by}; }
  /// The bits of the elements that exist: all of them.
  SLAMB_ELEMENT static std::uint32_t existing() { return (1U << W) - 1U; }
};

/// Bytes that one instruction can read or write: those of `W` numbers, at most sixteen.
template <unsigned W, class T>
inline constexpr std::size_t bytes_at_once = W * sizeof(T) < 16 ? W * sizeof(T) : 16;

/// Numbers that are read and written together.
template <unsigned W, class T>
struct alignas(bytes_at_once<W, T>) neighbours {
  T of[W];
};

/// Throws in an emulated kernel if `address` is not a multiple of `bytes`, because a device would stop with an error.
SLAMB_ELEMENT void require_aligned([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
#if !defined(SLAMB_ON_DEVICE)
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    throw std::logic_error(
        "slamb: a kernel reads or writes several numbers at once, but their address is not aligned for this");
#endif
}

/// `address`, which nvcc then knows to be aligned to `Bytes`. The emulator tells g++ nothing: g++ 12 at -O2 also uses the alignment for
/// the loads of the other branch of `load_any`, whose address is not aligned.
template <std::size_t Bytes, class Void>
SLAMB_ELEMENT Void* known_aligned(Void* address) {
#if defined(SLAMB_ON_DEVICE)
  return static_cast<Void*>(__builtin_assume_aligned(address, Bytes));
#else
  return address;
#endif
}

// From and to a variable, because nvcc copies byte by byte what a function returns.

/// Reads the numbers of a group at once. The first of them is aligned for that.
template <unsigned W, class T>
SLAMB_ELEMENT void load_aligned(const T* array, group<W> at, T (&to)[W]) {
  const T* const from = array + at.i;
  if constexpr (W == 1) {
    to[0] = from[0];  // nvcc would copy it byte by byte
  } else {
    neighbours<W, T> all;
    require_aligned(from, alignof(neighbours<W, T>));
    __builtin_memcpy(&all, known_aligned<alignof(neighbours<W, T>)>(static_cast<const void*>(from)), sizeof(all));
    for (unsigned j = 0; j < W; ++j) to[j] = all.of[j];
  }
}

/// Writes the numbers of a group at once. The first of them is aligned for that.
template <unsigned W, class T>
SLAMB_ELEMENT void store_aligned(const T (&from)[W], T* array, group<W> at) {
  T* const to = array + at.i;
  if constexpr (W == 1) {
    to[0] = from[0];
  } else {
    neighbours<W, T> all;
    require_aligned(to, alignof(neighbours<W, T>));
    for (unsigned j = 0; j < W; ++j) all.of[j] = from[j];
    __builtin_memcpy(known_aligned<alignof(neighbours<W, T>)>(static_cast<void*>(to)), &all, sizeof(all));
  }
}

/// True if the numbers of a group can be read and written at once. The same for all groups of an array, so compilers can move this
/// check out of loops.
template <unsigned W, class T>
SLAMB_ELEMENT bool is_aligned(const T* array, group<W> at) {
  return reinterpret_cast<std::uintptr_t>(array + at.i) % alignof(neighbours<W, T>) == 0;
}

/// Reads the numbers of a group from an array of any alignment, at once if it is aligned for that.
template <unsigned W, class T>
SLAMB_ELEMENT void load_any(const T* array, group<W> at, T (&to)[W]) {
  const T* const from = array + at.i;
  if (is_aligned(array, at)) {
    load_aligned(array, at, to);
  } else {
    for (unsigned j = 0; j < W; ++j) to[j] = from[j];
  }
}

/// Writes the numbers of a group to an array of any alignment, at once if it is aligned for that.
template <unsigned W, class T>
SLAMB_ELEMENT void store_any(const T (&from)[W], T* array, group<W> at) {
  T* const to = array + at.i;
  if (is_aligned(array, at)) {
    store_aligned(from, array, at);
  } else {
    for (unsigned j = 0; j < W; ++j) to[j] = from[j];
  }
}

/// Words from bytes or halves of words, and to them.
template <unsigned W, class T>
SLAMB_ELEMENT words<W> load_words(const T* array, group<W> at) {
  T narrow[W];
  load_any(array, at, narrow);
  words<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = narrow[j];
  return x;
}
template <unsigned W, class T>
SLAMB_ELEMENT void store_words(const words<W>& x, T* array, group<W> at) {
  T narrow[W];
  for (unsigned j = 0; j < W; ++j) narrow[j] = static_cast<T>(x.of[j]);
  store_any(narrow, array, at);
}

// Memory in which groups are aligned.

template <unsigned W>
SLAMB_ELEMENT reals<W> load_together(const float* array, group<W> at) {
  reals<W> x;
  load_aligned(array, at, x.of);
  return x;
}
template <unsigned W>
SLAMB_ELEMENT void store_together(const reals<W>& x, float* array, group<W> at) {
  store_aligned(x.of, array, at);
}

// Arrays of any alignment, from their first element on.

template <unsigned W>
SLAMB_ELEMENT reals<W> load(const float* array, group<W> at) {
  reals<W> x;
  load_any(array, at, x.of);
  return x;
}
template <unsigned W>
SLAMB_ELEMENT void store(const reals<W>& x, float* array, group<W> at) {
  store_any(x.of, array, at);
}
// Numbers of sixteen bits: to nearest, as IEEE 754 defines, or by chance.

template <unsigned W>
SLAMB_ELEMENT reals<W> load_bfloat16(const std::uint16_t* array, group<W> at) {
  return real_of_bfloat16_bits(load_words(array, at));
}
template <unsigned W>
SLAMB_ELEMENT reals<W> load_half(const std::uint16_t* array, group<W> at) {
  return real_of_half_bits<reals<W>>(load_words(array, at));
}
template <unsigned W>
SLAMB_ELEMENT void store_bfloat16(const reals<W>& x, const words<W>& draw, std::uint16_t* array, group<W> at) {
  store_words(stochastic_bfloat16_bits(x, draw), array, at);
}
template <unsigned W>
SLAMB_ELEMENT void store_typed(const reals<W>& x, std::uint16_t* array, element_type type, group<W> at) {
  store_words(type == element_type::bfloat16 ? nearest_bfloat16_bits(x) : half_bits(x), array, at);
}
template <unsigned W>
SLAMB_ELEMENT void store_typed(const reals<W>& x, const words<W>& draw, std::uint16_t* array, element_type type,
                               group<W> at) {
  store_words(type == element_type::bfloat16 ? stochastic_bfloat16_bits(x, draw) : stochastic_half_bits(x, draw), array,
              at);
}

/// The mask of the lanes whose bit is set (lane j: bit j).
template <unsigned W>
SLAMB_ELEMENT masks<W> mask_of(std::uint32_t bits, group<W> /*at*/) {
  masks<W> mask;
  for (unsigned j = 0; j < W; ++j) mask.of[j] = (bits >> j & 1U) != 0;
  return mask;
}
/// The bits of the elements, in an array with sixteen elements a word.
template <unsigned W>
SLAMB_ELEMENT std::uint32_t bits_at(const std::uint16_t* bits, group<W> at) {
  return std::uint32_t{bits[at.i / 16]} >> (at.i % 16) & at.existing();
}
/// x: all elements of a group exist.
template <unsigned W>
SLAMB_ELEMENT const reals<W>& existing(const reals<W>& x, group<W> /*at*/) {
  return x;
}
/// Writes the values whose bit is set, one after another.
template <unsigned W>
SLAMB_ELEMENT void compress(std::uint32_t bits, const reals<W>& x, float* to, group<W> /*at*/) {
  std::uint32_t offset = 0;
  for (unsigned j = 0; j < W; ++j) {
    if ((bits >> j & 1U) != 0) to[offset] = x.of[j];
    offset += bits >> j & 1U;
  }
}
/// Reads consecutive values into the lanes whose bit is set. The others become 0.
template <unsigned W>
SLAMB_ELEMENT reals<W> expand(std::uint32_t bits, const float* from, group<W> /*at*/) {
  reals<W> x;
  std::uint32_t offset = 0;
  for (unsigned j = 0; j < W; ++j) {
    x.of[j] = (bits >> j & 1U) != 0 ? from[offset] : 0.0F;
    offset += bits >> j & 1U;
  }
  return x;
}
/// table[i] of each lane.
template <unsigned W, class Table>
SLAMB_ELEMENT reals<W> looked_up(const Table& table, const words<W>& i, group<W> /*at*/) {
  reals<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = table[i.of[j]];
  return x;
}
/// first + i, first + i + 1, …
template <unsigned W>
SLAMB_ELEMENT reals<W> numbers_at(std::uint32_t first, group<W> at) {
  reals<W> x;
  for (unsigned j = 0; j < W; ++j) x.of[j] = static_cast<float>(first + at.i + j);
  return x;
}

/// Calls body(group<4>) for groups of four elements, and body(group<1>) for the remaining elements. All threads of a block together
/// cover [0, count), and neighbouring threads get neighbouring elements. For use within a phase.
///
/// @param count  elements, at most 2^31
template <unsigned Threads, class Body>
SLAMB_ELEMENT void for_each_group(unsigned thread, std::uint32_t count, const Body& body) {
  const std::uint32_t in_groups = count - count % 4;
  SLAMB_NO_UNROLL
  for (std::uint32_t i = 4 * thread; i < in_groups; i += 4 * Threads) body(group<4>{i});
  SLAMB_NO_UNROLL
  for (std::uint32_t i = in_groups + thread; i < count; i += Threads) body(group<1>{i});
}

}  // namespace slamb::detail::cuda
