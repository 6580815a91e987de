// The arrays of passes as types, and lists of them.
//
// An array is a struct with a member template `field`, of one member, which names its elements:
//
//     struct momentum : slamb::detail::state_array {
//       static constexpr const char* name = "momentum";
//       template <class T>
//       struct field {
//         T momentum;
//       };
//     };
//
// An element, the pointers of a tile and the pointers of a model derive from the fields of their arrays. So each array is reached
// by its name (`e.momentum`), and no other code lists the names.
#pragma once

#include <cstddef>
#include <type_traits>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// An array of an optimizer's state: one float for each element, at the places of `segment::state`.
struct state_array {
  using stored = float;
};

/// Arrays that every optimizer has, and values of an element that are in no array.
namespace array {

/// p, in the user's memory.
struct parameter {
  using stored = float;
  template <class T>
  struct field {
    T parameter;
  };
};

/// g, in the user's memory or in the exchange buffer. Read only.
struct gradient {
  using stored = const float;
  template <class T>
  struct field {
    T gradient;
  };
};

/// The contiguous exchange buffer, or the received value of a signal.
struct exchanged {
  using stored = float;
  template <class T>
  struct field {
    T exchanged;
  };
};

/// The compression error of this rank's signal, for passes with `uses_compression_error` or `receives_compression_error`. Not in
/// memory.
struct compression_error {
  using stored = void;
  template <class T>
  struct field {
    T compression_error;
  };
};

/// The element's number in its tensor, modulo 2^24. Not in memory, and read only.
struct position {
  using stored = void;
  template <class T>
  struct field {
    T position;
  };
};

/// m of Adam's update.
struct momentum : state_array {
  static constexpr const char* name = "momentum";
  template <class T>
  struct field {
    T momentum;
  };
};

/// v of Adam's update.
struct variance : state_array {
  static constexpr const char* name = "variance";
  template <class T>
  struct field {
    T variance;
  };
};

/// An array that ranks compare instead of the parameters.
struct compared : state_array {
  template <class T>
  struct field {
    T compared;
  };
};

}  // namespace array

/// The one member of a field, of any name.
template <class Array, class T>
SLAMB_ELEMENT T& value_of(typename Array::template field<T>& field) {
  auto& [value] = field;
  T* const its = &value;  // nvcc 13.0 takes `value` for a local variable
  return *its;
}
template <class Array, class T>
SLAMB_ELEMENT const T& value_of(const typename Array::template field<T>& field) {
  const auto& [value] = field;
  const T* const its = &value;
  return *its;
}

/// A list of different arrays.
template <class... Arrays>
struct arrays {
  static constexpr std::size_t count = sizeof...(Arrays);
  /// The number of arrays in memory.
  static constexpr std::size_t stored = (std::size_t{0} + ... + (std::is_void_v<typename Arrays::stored> ? 0U : 1U));

  template <class Array>
  static constexpr bool has = (std::is_same_v<Arrays, Array> || ...);
};

/// The arrays of several lists, each once, in the order of their first occurrence.
template <class... Lists>
struct union_of {
  using type = arrays<>;
};
template <class... Arrays>
struct union_of<arrays<Arrays...>> {
  using type = arrays<Arrays...>;
};
template <class... Arrays, class... Lists>
struct union_of<arrays<Arrays...>, arrays<>, Lists...> : union_of<arrays<Arrays...>, Lists...> {};
template <class... Arrays, class First, class... Rest, class... Lists>
struct union_of<arrays<Arrays...>, arrays<First, Rest...>, Lists...>
    : union_of<std::conditional_t<arrays<Arrays...>::template has<First>, arrays<Arrays...>, arrays<Arrays..., First>>,
               arrays<Rest...>, Lists...> {};
template <class... Lists>
using union_of_t = typename union_of<Lists...>::type;

/// A list, or the empty list.
template <bool Condition, class List>
using arrays_if = std::conditional_t<Condition, List, arrays<>>;

/// The fields of all arrays of a list.
template <class T, class List>
struct fields;
template <class T, class... Arrays>
struct fields<T, arrays<Arrays...>> : Arrays::template field<T>... {};

}  // namespace slamb::detail
