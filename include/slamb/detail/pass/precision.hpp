// Storage of arrays: the types of parameters and gradients, and of the arrays of a state.
//
// Passes compute in floats. A precision gives the types of the pointers by which a backend reads and writes arrays:
//
//     using parameter_pointer, data_pointer, gradient_pointer;
//     using arrays;                               // a storage_list: how the arrays of a state are stored
//     using draws;                                // of stochastic rounding; an empty type without
//     static parameter_of(segment, first), data_of(segment, first);
//     static gradient_of(segment, first, scale), exchanged_gradient(const float*);
//
// A tensor without a gradient has the gradient 0: its parameters times 0, because there must be memory to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/random.hpp"
#include "slamb/detail/pass/layout.hpp"

namespace slamb::detail {

/// `array` from element `first` on, if there is one.
template <class T>
SLAMB_HOST_DEVICE T* from_element(T* array, std::uint64_t first) {
  return array == nullptr ? nullptr : array + first;
}

/// Numbers of sixteen bits, rounded by chance.
struct bfloat16_numbers {
  std::uint16_t* bits = nullptr;
};

/// Numbers of eight bits, rounded by chance. Blocks of `code_block` elements of a tile share a scale.
template <bool Signed>
struct eight_bit_numbers {
  static constexpr bool is_signed = Signed;

  std::uint8_t* codes = nullptr;
  float* scales = nullptr;  ///< [tiles][blocks_of_tile]; of one tile: [blocks_of_tile]
};

/// The blocks of a tile.
inline constexpr std::uint32_t blocks_of_tile = layout::tile_size / code_block;

// A state array from its element `offset` on, which is the first of a tile; null if there is no such array.
template <class T>
SLAMB_HOST_DEVICE T* from_tile(T* array, std::uint64_t offset, std::size_t /*tile*/) {
  return from_element(array, offset);
}
SLAMB_HOST_DEVICE inline bfloat16_numbers from_tile(const bfloat16_numbers& array, std::uint64_t offset,
                                                    std::size_t /*tile*/) {
  return {from_element(array.bits, offset)};
}
template <bool Signed>
SLAMB_HOST_DEVICE eight_bit_numbers<Signed> from_tile(const eight_bit_numbers<Signed>& array, std::uint64_t offset,
                                                      std::size_t tile) {
  return {from_element(array.codes, offset), from_element(array.scales, tile * blocks_of_tile)};
}

// True if there is such an array.
SLAMB_HOST_DEVICE inline bool exists(const float* array) { return array != nullptr; }
SLAMB_HOST_DEVICE inline bool exists(const bfloat16_numbers& array) { return array.bits != nullptr; }
template <bool Signed>
SLAMB_HOST_DEVICE bool exists(const eight_bit_numbers<Signed>& array) {
  return array.codes != nullptr;
}

// True if element i of the array is 0.
SLAMB_HOST_DEVICE inline bool is_zero(const float* array, std::size_t i) { return array[i] == 0.0F; }
SLAMB_HOST_DEVICE inline bool is_zero(const bfloat16_numbers& array, std::size_t i) {
  return (array.bits[i] & 0x7FFFU) == 0;
}
template <bool Signed>
SLAMB_HOST_DEVICE bool is_zero(const eight_bit_numbers<Signed>& array, std::size_t i) {
  return (array.codes[i] & dynamic_map<Signed>::last) == 0;
}

/// A state array in memory, whatever its storage.
struct array_memory {
  std::byte* numbers = nullptr;
  float* scales = nullptr;  ///< [tiles][blocks_of_tile], if it is in blocks
};
inline array_memory memory_of(float* array) noexcept { return {reinterpret_cast<std::byte*>(array)}; }
inline array_memory memory_of(const bfloat16_numbers& array) noexcept {
  return {reinterpret_cast<std::byte*>(array.bits)};
}
template <bool Signed>
array_memory memory_of(const eight_bit_numbers<Signed>& array) noexcept {
  return {reinterpret_cast<std::byte*>(array.codes), array.scales};
}

// Storage of a state array.

struct as_floats {
  using pointer = float*;
  static constexpr std::size_t element_bytes = sizeof(float);
  static constexpr bool is_signed = true;
  static constexpr bool is_drawn = false;      ///< rounded by chance
  static constexpr bool is_in_blocks = false;  ///< which share scales
  static pointer at(const array_memory& memory) noexcept { return reinterpret_cast<float*>(memory.numbers); }
};
struct as_bfloat16 {
  using pointer = bfloat16_numbers;
  static constexpr std::size_t element_bytes = 2;
  static constexpr bool is_signed = true;
  static constexpr bool is_drawn = true;
  static constexpr bool is_in_blocks = false;
  static pointer at(const array_memory& memory) noexcept { return {reinterpret_cast<std::uint16_t*>(memory.numbers)}; }
};
template <bool Signed>
struct in_eight_bits {
  using pointer = eight_bit_numbers<Signed>;
  static constexpr std::size_t element_bytes = 1;
  static constexpr bool is_signed = Signed;
  static constexpr bool is_drawn = true;
  static constexpr bool is_in_blocks = true;
  static pointer at(const array_memory& memory) noexcept {
    return {reinterpret_cast<std::uint8_t*>(memory.numbers), memory.scales};
  }
};

/// Stands for in_eight_bits, with a sign if the array's numbers have one: `state_array::is_signed`.
struct as_eight_bits {};

/// True for pointers to numbers in blocks: a tile's blocks are written when all their elements are known.
template <class Pointer>
inline constexpr bool is_in_blocks = false;
template <bool Signed>
inline constexpr bool is_in_blocks<eight_bit_numbers<Signed>> = true;

/// Bytes an element, with its part in the scale of a block.
template <class Storage>
inline constexpr double bytes_of_storage = static_cast<double>(Storage::element_bytes) +
                                           (Storage::is_in_blocks ? sizeof(float) / static_cast<double>(code_block)
                                                                  : 0.0);

/// Stands for the draws of a precision that rounds nothing by chance.
struct no_draws {};

template <class Storage>
inline constexpr bool is_storage = std::is_same_v<Storage, as_floats> || std::is_same_v<Storage, as_bfloat16> ||
                                   std::is_same_v<Storage, as_eight_bits>;

/// The storage that the second argument of stored_as stands for; floats if an argument is wrong.
template <class Array, class Storage>
struct storage_for {
  using type = std::conditional_t<std::is_same_v<Storage, as_bfloat16>, as_bfloat16, as_floats>;
};
template <class Array>
requires requires { Array::is_signed; }
struct storage_for<Array, as_eight_bits> {
  using type = in_eight_bits<Array::is_signed>;
};

/// An array of a state and its storage.
template <class Array, class Storage>
struct stored_as {
  static_assert(
      requires {
        Array::name;
        Array::is_signed;
      },
      "slamb: the first argument of stored_as must be an array of a state, which derives from "
      "kit::state_array");
  static_assert(is_storage<Storage>,
                "slamb: the second argument of stored_as must be as_floats, as_bfloat16 or as_eight_bits");
  using array = Array;
  using storage = typename storage_for<Array, Storage>::type;
};

template <class Array, class... Stored>
struct storage_in {
  using type = as_floats;
};
template <class Array, class Storage, class... Rest>
struct storage_in<Array, stored_as<Array, Storage>, Rest...> {
  using type = typename stored_as<Array, Storage>::storage;
};
template <class Array, class First, class... Rest>
struct storage_in<Array, First, Rest...> : storage_in<Array, Rest...> {};

/// How the arrays of a state are stored: those of the list as it says, all others as floats.
/// @tparam Stored  stored_as<Array, Storage>, each array once
template <class... Stored>
struct storage_list {
  using list = storage_list;  // of types that derive from it

  template <class Array>
  using storage_of = typename storage_in<Array, Stored...>::type;

  static constexpr bool has_draws = (Stored::storage::is_drawn || ...);
  static constexpr bool has_sixteen_bits = (std::is_same_v<typename Stored::storage, as_bfloat16> || ...);

  /// The array's place among those of the list: the number of its draws.
  template <class Array>
  static constexpr unsigned number_of() noexcept {
    unsigned number = 0;
    static_cast<void>(((std::is_same_v<typename Stored::array, Array> || (++number, false)) || ...));
    return number;
  }

 private:
  template <class Array>
  static constexpr int times = (0 + ... + int(std::is_same_v<typename Stored::array, Array>));
  static_assert(((times<typename Stored::array> == 1) && ...), "slamb: a list of storage names an array twice");
};

/// The list of a storage; the empty one for other types.
template <class Storage>
struct list_of {
  using type = storage_list<>;
};
template <class Storage>
requires requires { typename Storage::list; }
struct list_of<Storage> {
  using type = typename Storage::list;
};

/// A gradient: floats, each times `scale`.
struct scaled_floats {
  const float* address;
  float scale;
};

/// All arrays are floats.
struct single_precision {
  static constexpr bool takes_types = false;
  static constexpr bool rounds_by_chance = false;
  using arrays = storage_list<>;
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

/// The random numbers by which numbers are rounded: sixteen bits for each element of each tensor and step, the same on every backend
/// and every rank. Element i of tensor l in step t has `draw_of` of philox(seed, i/64 + 2^61 use, 2^32 t + l).
///
/// Any two draws are independent. So the mean of each rounded number and the variance of each sum are those of independent
/// draws. Three draws of one counter may be dependent.
struct rounding_draws {
  std::uint64_t seed = 0;
  const std::uint64_t* steps = nullptr;  ///< t − 1, in the backend's memory
  std::uint64_t use = of_update;         ///< distinguishes several roundings of one element in one step: 1 … 7

  // Not 0: the draws of random_k, whose seed may be the same, have counters below 2^61 in the same stream.
  static constexpr std::uint64_t of_update = 1, of_average = 2;

  static constexpr std::uint64_t elements_of_counter = 64;

  SLAMB_HOST_DEVICE std::uint64_t stream(std::uint32_t tensor) const { return ((*steps + 1) << 32U) | tensor; }
  SLAMB_HOST_DEVICE std::uint64_t counter(std::uint64_t element) const {
    return (use << 61U) | element / elements_of_counter;
  }

  /// With k = i mod 8, s = ⌊i/8⌋ mod 8 and the halves h[0] … h[7] of the words, indices modulo 8:
  ///
  ///     h[k]                                 s = 0
  ///     h[k] xor h[k + s]                    s = 1, 2, 3
  ///     h[k] xor h[k + 1] xor h[k + s − 2]   s = 4 … 7
  SLAMB_HOST_DEVICE static std::uint32_t draw_of(const random_words& words, std::uint64_t element) {
    const std::uint64_t k = element % 8, s = element / 8 % 8;
    std::uint32_t draw = half_of(words, k);
    if (s > 3) draw ^= half_of(words, k + 1);
    if (s > 0) draw ^= half_of(words, k + (s > 3 ? s - 2 : s));
    return draw;
  }

  /// `draw_of` elements i … i + 3, with i a multiple of 4, from the lowest sixteen bits on: the eight halves of words, rotated to
  /// element i, with themselves rotated on.
  SLAMB_HOST_DEVICE static std::uint64_t four_draws_of(const random_words& words, std::uint64_t element) {
    const auto i = static_cast<std::uint32_t>(element);
    const bool begins_behind = (i & 4U) != 0;
    // By values and not by places, because an array that is indexed at run time would be in a device's local memory.
    const std::uint32_t w0 = begins_behind ? words.word[2] : words.word[0];
    const std::uint32_t w1 = begins_behind ? words.word[3] : words.word[1];
    const std::uint32_t w2 = begins_behind ? words.word[0] : words.word[2];
    const std::uint32_t w3 = begins_behind ? words.word[1] : words.word[3];
    const std::uint32_t s = i / 8 & 7U, apart = s > 3 ? s - 2 : s;  // halves: 0 … 5
    const std::uint32_t a = apart < 2 ? w0 : apart < 4 ? w1 : w2;
    const std::uint32_t b = apart < 2 ? w1 : apart < 4 ? w2 : w3;
    const std::uint32_t c = apart < 2 ? w2 : apart < 4 ? w3 : w0;
    const bool is_odd = (apart & 1U) != 0;
    const std::uint32_t if_any = s > 0 ? 0xFFFFFFFFU : 0U, if_three = s > 3 ? 0xFFFFFFFFU : 0U;
    const std::uint32_t low = w0 ^ ((is_odd ? half_on(a, b) : a) & if_any) ^ (half_on(w0, w1) & if_three);
    const std::uint32_t high = w1 ^ ((is_odd ? half_on(b, c) : b) & if_any) ^ (half_on(w1, w2) & if_three);
    return std::uint64_t{high} << 32 | low;
  }

 private:
  SLAMB_HOST_DEVICE static std::uint32_t half_of(const random_words& words, std::uint64_t k) {
    return words.at(k / 2) >> (k % 2 * 16) & 0xFFFFU;
  }
  // Of two words as four halves, the second and the third.
  SLAMB_HOST_DEVICE static std::uint32_t half_on(std::uint32_t a, std::uint32_t b) { return a >> 16 | b << 16; }
};

/// The draw of array number `Number` of a storage_list, from the parameter's draw r = 256 a + b. The upper eight bits are b for
/// number 0, and a + x^(Number − 1) b for others, in the field of 2^8 elements with x^8 = x^4 + x^3 + x^2 + 1. Those of any two
/// arrays are independent, and of the parameter's, which are a.
template <unsigned Number, class Word>
SLAMB_ELEMENT Word draw_of_array(const Word& r) {
  static_assert(Number < 256, "slamb: a list of storage has more than 256 arrays");
  if constexpr (Number == 0) {
    return ((r << 8) | (r >> 8)) & Word(0xFFFFU);
  } else {
    Word product = r & Word(0xFFU);
    for (unsigned k = 1; k < Number; ++k) {
      const Word carry = product >> 7;
      product = ((product << 1) & Word(0xFFU)) ^ carry ^ (carry << 2) ^ (carry << 3) ^ (carry << 4);
    }
    return r ^ (product << 8);
  }
}

/// Parameters and gradients of a type known at run time, for each tensor.
/// @tparam Chance  true: parameters of sixteen bits without a master copy are rounded by chance
/// @tparam Stored  a storage_list: how the arrays of the state are stored
template <bool Chance, class Stored = storage_list<>>
struct mixed_precision {
  static constexpr bool takes_types = true;
  static constexpr bool rounds_by_chance = Chance;
  using arrays = Stored;
  using parameter_pointer = typed_parameter;
  using data_pointer = typed_numbers;
  using gradient_pointer = scaled_numbers;
  using draws = std::conditional_t<Chance || Stored::has_draws, rounding_draws, no_draws>;

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

/// True if a precision rounds anything by chance.
template <class Precision>
inline constexpr bool has_draws = std::is_same_v<typename Precision::draws, rounding_draws>;
/// How a precision stores an array of the state.
template <class Array, class Precision>
using storage_of_t = typename Precision::arrays::template storage_of<Array>;

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
