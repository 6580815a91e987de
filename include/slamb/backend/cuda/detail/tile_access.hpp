// Divides a tile's elements among the threads of a block, and reads and writes its arrays: as host::tile_arrays, but for one
// element or four consecutive ones at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "slamb/backend/cuda/detail/scalar.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/detail/rounding.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/random.hpp"
#include "slamb/detail/kernel/kernel.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail::cuda {

/// The number of consecutive elements that a thread processes at a time: 1, or 4, which are 16 bytes.
template <unsigned Width>
using width = std::integral_constant<unsigned, Width>;

/// `Width` numbers that one instruction can read or write.
template <unsigned Width, class T>
struct alignas(Width * sizeof(T)) pack {
  T of[Width];
};

/// Throws in an emulated kernel if `address` is not a multiple of `bytes`, because a device would stop with an error.
SLAMB_ELEMENT void require_aligned([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
#if !defined(__CUDA_ARCH__)
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    throw std::logic_error(
        "slamb: a kernel reads or writes several numbers at once, but their address is not aligned for this");
#endif
}

/// `address`, which nvcc then knows to be aligned to `Bytes`. The emulator tells g++ nothing: g++ 12 at -O2 also uses the alignment for
/// the loads of the other branch of `load_from`, whose address is not aligned.
template <std::size_t Bytes, class Void>
SLAMB_ELEMENT Void* known_aligned(Void* address) {
#if defined(__CUDA_ARCH__)
  return static_cast<Void*>(__builtin_assume_aligned(address, Bytes));
#else
  return address;
#endif
}

/// Reads `Width` consecutive numbers at once. `from` is aligned to their total size.
template <unsigned Width, class T>
SLAMB_ELEMENT void load_together(const T* from, T (&to)[Width]) {
  if constexpr (Width == 1) {
    to[0] = from[0];  // nvcc would copy it byte by byte
  } else {
    pack<Width, T> all;
    require_aligned(from, sizeof(all));
    std::memcpy(&all, known_aligned<sizeof(all)>(static_cast<const void*>(from)), sizeof(all));
    for (unsigned j = 0; j < Width; ++j) to[j] = all.of[j];
  }
}

/// Writes `Width` consecutive numbers at once. `to` is aligned to their total size.
template <unsigned Width, class T>
SLAMB_ELEMENT void store_together(const T (&from)[Width], T* to) {
  if constexpr (Width == 1) {
    to[0] = from[0];
  } else {
    pack<Width, T> all;
    require_aligned(to, sizeof(all));
    for (unsigned j = 0; j < Width; ++j) all.of[j] = from[j];
    std::memcpy(known_aligned<sizeof(all)>(static_cast<void*>(to)), &all, sizeof(all));
  }
}

/// In the emulator, makes all values of some elements NaN, so that a pass that reads an array which it does not list in `reads`
/// cannot get a plausible value. On a device, does nothing.
template <class Element, unsigned Width>
SLAMB_ELEMENT void hide([[maybe_unused]] Element (&e)[Width]) {
#if !defined(__CUDA_ARCH__)
  std::memset(static_cast<void*>(e), 0xFF, sizeof(e));
#endif
}

/// True if the numbers of `array` can be read and written `Width` at a time. True for null.
template <unsigned Width, class T>
SLAMB_HOST_DEVICE bool is_aligned_for(const T* array) {
  return reinterpret_cast<std::uintptr_t>(array) % (Width * sizeof(T)) == 0;
}

/// Reads numbers i … i + Width − 1 of an array of any alignment, at once if it is aligned for that. i is a multiple of Width, so
/// the check has the same result for all i, and compilers can move it out of loops.
template <unsigned Width, class T>
SLAMB_ELEMENT void load_from(const T* array, std::size_t i, T (&to)[Width]) {
  const T* const from = array + i;
  if (is_aligned_for<Width>(from)) {
    load_together(from, to);
  } else {
    for (unsigned j = 0; j < Width; ++j) to[j] = from[j];
  }
}

/// Writes numbers i … i + Width − 1 of an array of any alignment, at once if it is aligned for that. i is a multiple of Width.
template <unsigned Width, class T>
SLAMB_ELEMENT void store_to(const T (&from)[Width], T* array, std::size_t i) {
  T* const to = array + i;
  if (is_aligned_for<Width>(to)) {
    store_together(from, to);
  } else {
    for (unsigned j = 0; j < Width; ++j) to[j] = from[j];
  }
}

// Arrays of a type known at run time, from element i on. i is a multiple of Width.

template <unsigned Width, typed_array Typed>
SLAMB_ELEMENT void load_typed(const Typed& array, std::size_t i, float (&to)[Width]) {
  if (array.type == element_type::float32) return load_from(static_cast<const float*>(array.address), i, to);
  std::uint16_t bits[Width];
  load_from(static_cast<const std::uint16_t*>(array.address), i, bits);
  for (unsigned j = 0; j < Width; ++j)
    to[j] = array.type == element_type::bfloat16 ? real_of_bfloat16_bits(std::uint32_t{bits[j]})
                                                 : real_of_half_bits<scalar>(std::uint32_t{bits[j]}).value;
}

/// Stores to the nearest numbers of sixteen bits, as IEEE 754 defines.
template <unsigned Width>
SLAMB_ELEMENT void store_nearest(const float (&from)[Width], void* array, element_type type, std::size_t i) {
  std::uint16_t bits[Width];
  for (unsigned j = 0; j < Width; ++j) {
    const scalar x(from[j]);
    bits[j] = static_cast<std::uint16_t>(type == element_type::bfloat16 ? nearest_bfloat16_bits(x) : half_bits(x));
  }
  store_to(bits, static_cast<std::uint16_t*>(array), i);
}

/// Stores to one of the two nearest numbers of sixteen bits, by chance.
template <unsigned Width, class Draws>
SLAMB_ELEMENT void store_by_chance(const float (&from)[Width], const Draws& draws, void* array, element_type type,
                                   std::size_t i) {
  std::uint16_t bits[Width];
  draws.visit(width<Width>(), i, [&](unsigned j, std::uint32_t draw) {
    const scalar x(from[j]);
    bits[j] = static_cast<std::uint16_t>(type == element_type::bfloat16 ? stochastic_bfloat16_bits(x, draw)
                                                                        : stochastic_half_bits(x, draw));
  });
  store_to(bits, static_cast<std::uint16_t*>(array), i);
}

/// The random numbers of a tile, by which numbers are rounded.
template <class Precision>
struct tile_draws {
  tile_draws() = default;
  template <class View>
  SLAMB_HOST_DEVICE tile_draws(const View& /*view*/, const tile& /*t*/) {}
};
template <class Precision>
requires(has_draws<Precision>) struct tile_draws<Precision> {
  template <class View>
  SLAMB_HOST_DEVICE tile_draws(const View& view, const tile& t)
      : draws_(view.draws), tensor_(t.segment), first_(t.first) {}

  /// Calls visit(j, draw) for elements i + j of the tile, j = 0 … Width − 1; i is a multiple of Width.
  template <unsigned Width, class Visit>
  SLAMB_ELEMENT void visit(width<Width> /*here*/, std::size_t i, const Visit& visit) const {
    const std::uint64_t stream = draws_.stream(tensor_);
    std::uint64_t counter = draws_.counter(first_ + i);
    random_words words = philox(draws_.seed, counter, stream);
    for (unsigned j = 0; j < Width; ++j) {
      const std::uint64_t element = first_ + i + j;
      if (draws_.counter(element) != counter) {  // a group of four has two counters if the tile begins at an odd place
        counter = draws_.counter(element);
        words = philox(draws_.seed, counter, stream);
      }
      visit(j, draws_.draw_of(words, element));
    }
  }

 private:
  rounding_draws draws_;
  std::uint32_t tensor_;
  std::uint64_t first_;
};

/// The arrays of one tile, which a thread reads and writes.
template <class List, class Precision = single_precision>
struct tile_arrays : tile_pointers<List, Precision>, private tile_draws<Precision> {
  using precision = Precision;

  /// @param number  of the tile `t`
  template <class View>
  SLAMB_HOST_DEVICE tile_arrays(const View& view, const segment& s, const tile& t, std::size_t number)
      : tile_pointers<List, Precision>(view, s, t, number), tile_draws<Precision>(view, t) {}
  /// The arrays of a payload, which are floats.
  template <std::size_t Planes>
  SLAMB_HOST_DEVICE tile_arrays(float* const (&planes)[Planes], std::uint64_t first)
      : tile_pointers<List, Precision>(planes, first) {}

  /// Reads the given arrays of elements i … i + Width − 1 of the tile. i is a multiple of Width. Does not change other members of
  /// `e`.
  template <class Element, unsigned Width, class... Arrays>
  SLAMB_ELEMENT void load(arrays<Arrays...> /*some*/, [[maybe_unused]] Element (&e)[Width],
                          [[maybe_unused]] std::size_t i) const {
    (load_one<Arrays>(e, i), ...);
  }

  /// Writes the given arrays of elements i … i + Width − 1 of the tile. i is a multiple of Width.
  template <class Element, unsigned Width, class... Arrays>
  SLAMB_ELEMENT void store(arrays<Arrays...> /*some*/, [[maybe_unused]] const Element (&e)[Width],
                           [[maybe_unused]] std::size_t i) const {
    static_assert((!std::is_same_v<Arrays, array::gradient> && ...),
                  "slamb: a pass must not write gradients, because they belong to the user");
    static_assert((!std::is_void_v<typename Arrays::stored> && ...),
                  "slamb: a pass cannot write positions, because they are not stored in memory");
    (store_one<Arrays>(e, i), ...);
  }

  /// Stores an array in blocks, of elements i … i + Width − 1 of the tile, with a block's scale.
  template <class Array, unsigned Width>
  SLAMB_ELEMENT void store_codes(const float (&from)[Width], float scale, std::size_t i) const {
    const auto& array = value_of<Array, stored_pointer_t<Array, Precision>>(*this);
    if (i % code_block == 0) array.scales[i / code_block] = scale;
    store_in_block(from, scale, array, i);
  }

 private:
  template <class Array, class Element, unsigned Width>
  SLAMB_ELEMENT void load_one(Element (&e)[Width], std::size_t i) const {
    if constexpr (std::is_same_v<Array, array::position>) {
      for (unsigned j = 0; j < Width; ++j) e[j].position = scalar(static_cast<float>(this->first_position + i + j));
    } else {
      float x[Width];
      load_array(value_of<Array, stored_pointer_t<Array, Precision>>(*this), i, x);
      for (unsigned j = 0; j < Width; ++j) value_of<Array, scalar>(e[j]) = x[j];
    }
  }
  template <class Array, class Element, unsigned Width>
  SLAMB_ELEMENT void store_one(const Element (&e)[Width], std::size_t i) const {
    float x[Width];
    for (unsigned j = 0; j < Width; ++j) x[j] = value_of<Array, scalar>(e[j]).value;
    store_array(x, value_of<Array, stored_pointer_t<Array, Precision>>(*this), i);
  }

  template <unsigned Width>
  SLAMB_ELEMENT static void load_array(const float* array, std::size_t i, float (&to)[Width]) {
    load_from(array, i, to);
  }
  template <unsigned Width>
  SLAMB_ELEMENT static void load_array(const scaled_floats& array, std::size_t i, float (&to)[Width]) {
    load_from(array.address, i, to);
    for (float& x : to) x = rounded_product(x, array.scale);
  }
  template <unsigned Width>
  SLAMB_ELEMENT static void load_array(const scaled_numbers& array, std::size_t i, float (&to)[Width]) {
    load_typed(array, i, to);
    for (float& x : to) x = rounded_product(x, array.scale);
  }
  template <typed_array Typed, unsigned Width>
  SLAMB_ELEMENT static void load_array(const Typed& array, std::size_t i, float (&to)[Width]) {
    load_typed(array, i, to);
  }
  template <unsigned Width>
  SLAMB_ELEMENT static void load_array(const bfloat16_numbers& array, std::size_t i, float (&to)[Width]) {
    std::uint16_t bits[Width];
    load_from(array.bits, i, bits);
    for (unsigned j = 0; j < Width; ++j) to[j] = real_of_bfloat16_bits(std::uint32_t{bits[j]});
  }
  template <bool Signed, unsigned Width>
  SLAMB_ELEMENT static void load_array(const eight_bit_numbers<Signed>& array, std::size_t i, float (&to)[Width]) {
    std::uint8_t codes[Width];
    load_from(array.codes, i, codes);
    const scalar scale(array.scales[i / code_block]);
    for (unsigned j = 0; j < Width; ++j)
      to[j] = (dynamic_map<Signed>::template number_of<scalar>(std::uint32_t{codes[j]}) * scale).value;
  }
  template <unsigned Width>
  SLAMB_ELEMENT void store_array(const float (&from)[Width], float* array, std::size_t i) const {
    store_to(from, array, i);
  }
  template <unsigned Width>
  SLAMB_ELEMENT void store_array(const float (&from)[Width], const bfloat16_numbers& array, std::size_t i) const {
    std::uint16_t bits[Width];
    draws().visit(width<Width>(), i, [&](unsigned j, std::uint32_t draw) {
      bits[j] = static_cast<std::uint16_t>(stochastic_bfloat16_bits(scalar(from[j]), draw_of_momentum(draw)));
    });
    store_to(bits, array.bits, i);
  }
  template <bool Signed, unsigned Width>
  SLAMB_ELEMENT void store_in_block(const float (&from)[Width], float scale, const eight_bit_numbers<Signed>& array,
                                    std::size_t i) const {
    std::uint8_t codes[Width];
    if (scale <= 0x1.fffffep127F) {
      const scalar inverse(per_scale(scale));
      draws().visit(width<Width>(), i, [&](unsigned j, std::uint32_t draw) {
        const std::uint32_t own = Signed ? draw_of_momentum(draw) : draw_of_variance(draw);
        codes[j] = static_cast<std::uint8_t>(dynamic_map<Signed>::code_of(scalar(from[j]), inverse, own));
      });
    } else {
      for (std::uint8_t& code : codes) code = 1;
    }
    store_to(codes, array.codes, i);
  }
  template <unsigned Width>
  SLAMB_ELEMENT void store_array(const float (&from)[Width], const typed_parameter& array, std::size_t i) const {
    if (array.type == element_type::float32) {
      store_to(from, static_cast<float*>(array.address), i);
      if (array.rounded != nullptr) store_nearest(from, array.rounded, array.rounded_type, i);
    } else if constexpr (Precision::rounds_by_chance) {
      store_by_chance(from, draws(), array.address, array.type, i);
    }
  }

  // A base rather than a member, because it is empty for most precisions.
  SLAMB_ELEMENT const tile_draws<Precision>& draws() const { return *this; }
};

/// The arrays that a pass accesses.
template <class Pass, class Precision>
using tile_arrays_of = tile_arrays<accessed_by<Pass>, Precision>;

/// Calls body(i, width<4>{}) for groups of four elements, with i a multiple of 4, and body(i, width<1>{}) for the remaining
/// elements. All threads of a block together cover [0, count), and neighbouring threads get neighbouring elements. For use
/// within a phase.
///
/// @param count  elements, at most 2^31
template <unsigned Threads, class Body>
SLAMB_ELEMENT void for_each_group(unsigned thread, std::uint32_t count, const Body& body) {
  const std::uint32_t in_groups = count - count % 4;
  for (std::uint32_t i = 4 * thread; i < in_groups; i += 4 * Threads) body(i, width<4>{});
  for (std::uint32_t i = in_groups + thread; i < count; i += Threads) body(i, width<1>{});
}

}  // namespace slamb::detail::cuda
