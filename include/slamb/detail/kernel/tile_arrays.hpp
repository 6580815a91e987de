// Reads and writes the arrays of a tile, in the types in which they are stored. `load`, `store_half` and the like are functions of
// a position's machine, found by argument-dependent lookup: detail/kernel/kernel.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/eight_bits.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail {

// Arrays from the first element of a tile on.

template <class At>
SLAMB_ELEMENT typename At::real load_array(const float* array, At at) {
  return load(array, at);
}
template <class At>
SLAMB_ELEMENT typename At::real load_array(const scaled_floats& array, At at) {
  return load(array.address, at) * typename At::real(array.scale);
}
template <typed_array Typed, class At>
SLAMB_ELEMENT typename At::real load_array(const Typed& array, At at) {
  if (array.type == element_type::float32) return load(static_cast<const float*>(array.address), at);
  const auto* const bits = static_cast<const std::uint16_t*>(array.address);
  return array.type == element_type::bfloat16 ? load_bfloat16(bits, at) : load_half(bits, at);
}
template <class At>
SLAMB_ELEMENT typename At::real load_array(const scaled_numbers& array, At at) {
  return load_array(static_cast<const typed_numbers&>(array), at) * typename At::real(array.scale);
}
template <class At>
SLAMB_ELEMENT typename At::real load_array(const bfloat16_numbers& array, At at) {
  return load_bfloat16(array.bits, at);
}
template <bool Signed, class At>
SLAMB_ELEMENT typename At::real load_array(const eight_bit_numbers<Signed>& array, At at) {
  using Real = typename At::real;
  return dynamic_map<Signed>::template number_of<Real>(load_words(array.codes, at)) *
         Real(array.scales[at.i / code_block]);
}

template <class At>
SLAMB_ELEMENT void store_array(const typename At::real& x, float* array, At at) {
  store(x, array, at);
}

/// The number of an array's draws, as a variable because device code cannot call functions of the host.
template <class Array, class Precision>
inline constexpr unsigned array_number = Precision::arrays::template number_of<Array>();

/// The arrays of one tile.
/// @tparam Draws  of a team: draw(position) returns the random words by which numbers are rounded
template <class List, class Precision, class Draws>
struct tile_arrays : tile_pointers<List, Precision>, private Draws {
  using precision = Precision;

  /// @param number  of the tile `t`
  template <class View>
  SLAMB_HOST_DEVICE tile_arrays(const View& view, const segment& s, const tile& t, std::size_t number)
      : tile_pointers<List, Precision>(view, s, t, number), Draws(view, t) {}
  /// The arrays of a payload, which are floats.
  template <std::size_t Planes>
  SLAMB_HOST_DEVICE tile_arrays(float* const (&planes)[Planes], std::uint64_t first)
      : tile_pointers<List, Precision>(planes, first) {}

  /// Reads the given arrays. Does not change other members of `e`.
  template <class Element, class At, class... Arrays>
  SLAMB_ELEMENT void load(arrays<Arrays...> /*some*/, [[maybe_unused]] Element& e, [[maybe_unused]] At at) const {
    (load_one<Arrays>(e, at), ...);
  }

  /// Writes the given arrays, none of which is stored in blocks.
  template <class Element, class At, class... Arrays>
  SLAMB_ELEMENT void store(arrays<Arrays...> some, const Element& e, At at) const {
    static_assert((!std::is_same_v<Arrays, array::gradient> && ...),
                  "slamb: a pass must not write gradients, because they belong to the user");
    static_assert((!std::is_void_v<typename Arrays::stored> && ...),
                  "slamb: a pass cannot write positions, because they are not stored in memory");
    if constexpr ((std::is_same_v<stored_pointer_t<Arrays, Precision>, bfloat16_numbers> || ...)) {
      const typename At::word drawn = draws_at(at);  // once for all arrays
      store_by(some, e, at, [&drawn](At /*at*/) { return drawn; });
    } else {
      store_by(some, e, at, [&own = *this](auto here) { return own.draws_at(here); });
    }
  }

  template <class Array>
  SLAMB_ELEMENT const auto& pointer_to() const {
    return value_of<Array, stored_pointer_t<Array, Precision>>(*this);
  }

  /// The codes of an array in blocks, for a block with this reciprocal of its scale.
  template <class Array, class At>
  SLAMB_ELEMENT typename At::word codes_of(const typename At::real& x, float per_scale, At at) const {
    return codes_by<Array>(x, per_scale, draws_at(at));
  }
  /// The same, by the draws of the position.
  template <class Array, class Real, class Word>
  SLAMB_ELEMENT Word codes_by(const Real& x, float per_scale, const Word& draws) const {
    constexpr bool is_signed = stored_pointer_t<Array, Precision>::is_signed;
    return dynamic_map<is_signed>::code_of(x, Real(per_scale), draw_of_array<array_number<Array, Precision>>(draws));
  }
  /// The draws of a position, from which those of each array are made.
  template <class At>
  SLAMB_ELEMENT typename At::word draws_at(At at) const {
    return Draws::draw(at);
  }

 private:
  /// @param draws  draws(at): those of the position
  template <class Element, class At, class Drawing, class... Arrays>
  SLAMB_ELEMENT void store_by(arrays<Arrays...> /*some*/, [[maybe_unused]] const Element& e, [[maybe_unused]] At at,
                              [[maybe_unused]] const Drawing& draws) const {
    (store_one<Arrays>(value_of<Arrays, typename At::real>(e), pointer_to<Arrays>(), at, draws), ...);
  }

  template <class Array, class Element, class At>
  SLAMB_ELEMENT void load_one(Element& e, At at) const {
    if constexpr (std::is_same_v<Array, array::position>)
      e.position = numbers_at(this->first_position, at);
    else
      value_of<Array, typename At::real>(e) = load_array(pointer_to<Array>(), at);
  }

  template <class Array, class At, class Drawing>
  SLAMB_ELEMENT void store_one(const typename At::real& x, float* array, At at, const Drawing& /*draws*/) const {
    store_array(x, array, at);
  }
  template <class Array, class At, class Drawing>
  SLAMB_ELEMENT void store_one(const typename At::real& x, const typed_parameter& array, At at,
                               [[maybe_unused]] const Drawing& draws) const {
    if (array.type == element_type::float32) {
      store_array(x, static_cast<float*>(array.address), at);
      if (array.rounded != nullptr) store_typed(x, static_cast<std::uint16_t*>(array.rounded), array.rounded_type, at);
    } else if constexpr (Precision::rounds_by_chance) {
      store_typed(x, draws(at), static_cast<std::uint16_t*>(array.address), array.type, at);
    } else {  // another rank has the master copy
      store_typed(x, static_cast<std::uint16_t*>(array.address), array.type, at);
    }
  }
  template <class Array, class At, class Drawing>
  SLAMB_ELEMENT void store_one(const typename At::real& x, const bfloat16_numbers& array, At at,
                               const Drawing& draws) const {
    store_bfloat16(x, draw_of_array<array_number<Array, Precision>>(draws(at)), array.bits, at);
  }
};

/// The arrays that a pass accesses.
template <class Team, class Pass, class Precision>
using arrays_of_tile = tile_arrays<accessed_by<Pass>, Precision, typename Team::template draws<Precision>>;

// The arrays of a list that are stored in blocks, and the others.
template <class Precision, class List>
struct in_blocks;
template <class Precision, class... Arrays>
struct in_blocks<Precision, arrays<Arrays...>> {
  using type = union_of_t<arrays<>, arrays_if<is_in_blocks<stored_pointer_t<Arrays, Precision>>, arrays<Arrays>>...>;
};
template <class Precision, class List>
struct at_once;
template <class Precision, class... Arrays>
struct at_once<Precision, arrays<Arrays...>> {
  using type = union_of_t<arrays<>, arrays_if<!is_in_blocks<stored_pointer_t<Arrays, Precision>>, arrays<Arrays>>...>;
};

/// The arrays of a tile in one window of it. What is written to arrays in blocks waits until their scales are known.
/// @tparam Waiting  of a team: keep(k, x, position) keeps numbers of array k in blocks
template <class Arrays, class Writes, class Waiting>
struct arrays_in_window {
  using precision = typename Arrays::precision;
  using blocks = typename in_blocks<precision, Writes>::type;

  const Arrays& all;
  Waiting& waiting;

  template <class List, class Element, class At>
  SLAMB_ELEMENT void load(List some, Element& e, At at) const {
    all.load(some, e, at);
  }
  template <class Element, class At>
  SLAMB_ELEMENT void store(Writes /*all*/, const Element& e, At at) const {
    all.store(typename at_once<precision, Writes>::type(), e, at);
    keep(blocks(), e, at);
  }

 private:
  template <class... In, class Element, class At>
  SLAMB_ELEMENT void keep(arrays<In...> /*blocks*/, const Element& e, At at) const {
    unsigned k = 0;
    (waiting.keep(k++, value_of<In, typename At::real>(e), at), ...);
  }
};

}  // namespace slamb::detail
