// Reads and writes the arrays of a tile: as host::tile_arrays, but for one element or four consecutive ones at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "slamb/backend/cuda/detail/group.hpp"
#include "slamb/backend/cuda/detail/reals.hpp"
#include "slamb/core/bfloat16.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/detail/rounding.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/random.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail::cuda {

/// True if the step is skipped: kernels then do nothing.
///
/// @param skip  points to the flag in the backend's memory; may be null
SLAMB_HOST_DEVICE inline bool is_skipped(const std::uint32_t* skip) { return skip != nullptr && *skip != 0; }

/// In the emulator, makes all values of an element NaN, so that a pass that reads an array which it does not list in `reads` cannot get
/// a plausible value. On a device, does nothing.
template <class Element>
SLAMB_ELEMENT void hide([[maybe_unused]] Element& e) {
#if !defined(__CUDA_ARCH__)
  std::memset(static_cast<void*>(&e), 0xFF, sizeof(e));
#endif
}

// Arrays of floats, or of numbers of sixteen bits. Finite numbers stay finite.

template <class At>
SLAMB_ELEMENT typename At::real load_floats(const float* array, At at) {
  return load(array, at);
}
template <class At>
SLAMB_ELEMENT typename At::real load_floats(const bfloat16* array, At at) {
  return real_of_bfloat16_bits(load_words(&array->bits, at));
}
template <class At>
SLAMB_ELEMENT void store_floats(const typename At::real& x, float* array, At at) {
  store(x, array, at);
}
template <class At>
SLAMB_ELEMENT void store_floats(const typename At::real& x, bfloat16* array, At at) {
  store_words(bfloat16_bits(x), &array->bits, at);
}

// Arrays of a type known at run time.

template <typed_array Typed, class At>
SLAMB_ELEMENT typename At::real load_typed(const Typed& array, At at) {
  if (array.type == element_type::float32) return load(static_cast<const float*>(array.address), at);
  const auto bits = load_words(static_cast<const std::uint16_t*>(array.address), at);
  if (array.type == element_type::bfloat16) return real_of_bfloat16_bits(bits);
  return real_of_half_bits<typename At::real>(bits);
}

/// Stores to the nearest numbers of sixteen bits, as IEEE 754 defines.
template <class At>
SLAMB_ELEMENT void store_nearest(const typename At::real& x, void* array, element_type type, At at) {
  const bool is_bfloat16 = type == element_type::bfloat16;
  store_words(is_bfloat16 ? nearest_bfloat16_bits(x) : half_bits(x), static_cast<std::uint16_t*>(array), at);
}

/// Stores to one of the two nearest numbers of sixteen bits, by chance.
template <class At>
SLAMB_ELEMENT void store_by_chance(const typename At::real& x, const typename At::word& draw, void* array,
                                   element_type type, At at) {
  const bool is_bfloat16 = type == element_type::bfloat16;
  store_words(is_bfloat16 ? stochastic_bfloat16_bits(x, draw) : stochastic_half_bits(x, draw),
              static_cast<std::uint16_t*>(array), at);
}

// The draw of m or v from an element's.
template <class Word>
SLAMB_ELEMENT Word draw_for(const bfloat16_numbers& /*array*/, const Word& r) {
  return draw_of_momentum(r);
}
template <bool Signed, class Word>
SLAMB_ELEMENT Word draw_for(const eight_bit_numbers<Signed>& /*array*/, const Word& r) {
  if constexpr (Signed)
    return draw_of_momentum(r);
  else
    return draw_of_variance(r);
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

  template <unsigned W>
  SLAMB_ELEMENT words<W> at(group<W> here) const {
    const std::uint64_t stream = draws_.stream(tensor_);
    std::uint64_t counter = draws_.counter(first_ + here.i);
    random_words drawn = philox(draws_.seed, counter, stream);
    words<W> all;
    for (unsigned j = 0; j < W; ++j) {
      const std::uint64_t element = first_ + here.i + j;
      if (draws_.counter(element) != counter) {  // a group of four has two counters if the tile begins at an odd place
        counter = draws_.counter(element);
        drawn = philox(draws_.seed, counter, stream);
      }
      all.of[j] = draws_.draw_of(drawn, element);
    }
    return all;
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

  /// Reads the given arrays. Does not change other members of `e`.
  template <class Element, class At, class... Arrays>
  SLAMB_ELEMENT void load(arrays<Arrays...> /*some*/, [[maybe_unused]] Element& e, [[maybe_unused]] At at) const {
    (load_one<Arrays>(e, at), ...);
  }

  /// Writes the given arrays.
  template <class Element, class At, class... Arrays>
  SLAMB_ELEMENT void store(arrays<Arrays...> /*some*/, [[maybe_unused]] const Element& e,
                           [[maybe_unused]] At at) const {
    static_assert((!std::is_same_v<Arrays, array::gradient> && ...),
                  "slamb: a pass must not write gradients, because they belong to the user");
    static_assert((!std::is_void_v<typename Arrays::stored> && ...),
                  "slamb: a pass cannot write positions, because they are not stored in memory");
    (store_one(value_of<Arrays, typename At::real>(e), value_of<Arrays, stored_pointer_t<Arrays, Precision>>(*this),
               at),
     ...);
  }

  /// Stores an array in blocks, with the scale of a block.
  template <class Array, class At>
  SLAMB_ELEMENT void store_codes(const typename At::real& x, float scale, At at) const {
    const auto& array = value_of<Array, stored_pointer_t<Array, Precision>>(*this);
    if (at.i % code_block == 0) array.scales[at.i / code_block] = scale;
    store_in_block(x, scale, array, at);
  }

 private:
  template <class Array, class Element, class At>
  SLAMB_ELEMENT void load_one(Element& e, At at) const {
    if constexpr (std::is_same_v<Array, array::position>)
      e.position = numbers_at(this->first_position, at);
    else
      value_of<Array, typename At::real>(e) = loaded(value_of<Array, stored_pointer_t<Array, Precision>>(*this), at);
  }

  template <class At>
  SLAMB_ELEMENT static typename At::real loaded(const float* array, At at) {
    return load_floats(array, at);
  }
  template <class At>
  SLAMB_ELEMENT static typename At::real loaded(const scaled_floats& array, At at) {
    return load_floats(array.address, at) * typename At::real(array.scale);
  }
  template <class At>
  SLAMB_ELEMENT static typename At::real loaded(const scaled_numbers& array, At at) {
    return load_typed(array, at) * typename At::real(array.scale);
  }
  template <typed_array Typed, class At>
  SLAMB_ELEMENT static typename At::real loaded(const Typed& array, At at) {
    return load_typed(array, at);
  }
  template <class At>
  SLAMB_ELEMENT static typename At::real loaded(const bfloat16_numbers& array, At at) {
    return real_of_bfloat16_bits(load_words(array.bits, at));
  }
  template <bool Signed, class At>
  SLAMB_ELEMENT static typename At::real loaded(const eight_bit_numbers<Signed>& array, At at) {
    using real = typename At::real;
    return dynamic_map<Signed>::template number_of<real>(load_words(array.codes, at)) *
           real(array.scales[at.i / code_block]);
  }

  template <class At>
  SLAMB_ELEMENT void store_one(const typename At::real& x, float* array, At at) const {
    store_floats(x, array, at);
  }
  template <class At>
  SLAMB_ELEMENT void store_one(const typename At::real& x, const typed_parameter& array, At at) const {
    if (array.type == element_type::float32) {
      store_floats(x, static_cast<float*>(array.address), at);
      if (array.rounded != nullptr) store_nearest(x, array.rounded, array.rounded_type, at);
    } else if constexpr (Precision::rounds_by_chance) {
      store_by_chance(x, draws().at(at), array.address, array.type, at);
    }
  }
  template <class At>
  SLAMB_ELEMENT void store_one(const typename At::real& x, const bfloat16_numbers& array, At at) const {
    store_words(stochastic_bfloat16_bits(x, draw_for(array, draws().at(at))), array.bits, at);
  }
  template <bool Signed, class At>
  SLAMB_ELEMENT void store_in_block(const typename At::real& x, float scale, const eight_bit_numbers<Signed>& array,
                                    At at) const {
    using real = typename At::real;
    typename At::word codes(1U);
    if (scale <= 0x1.fffffep127F)
      codes = dynamic_map<Signed>::code_of(x, real(per_scale(scale)), draw_for(array, draws().at(at)));
    store_words(codes, array.codes, at);
  }

  // A base rather than a member, because it is empty for most precisions.
  SLAMB_ELEMENT const tile_draws<Precision>& draws() const { return *this; }
};

/// The arrays that a pass accesses.
template <class Pass, class Precision>
using tile_arrays_of = tile_arrays<accessed_by<Pass>, Precision>;

}  // namespace slamb::detail::cuda
