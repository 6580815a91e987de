// The arrays that passes work on, as types: what an element of each is called, and lists of them.
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
// An element, the pointers of a tile and those of a model all derive from the fields of the arrays that they have, so that each is
// reached by its name (`e.momentum`), and nothing else has to know it.
#pragma once

#include <cstddef>
#include <type_traits>

#include "slamb/core/config.hpp"

namespace slamb::detail {

/// What an optimizer keeps of each element: floats that lie as `segment::state` says.
struct state_array {
  using stored = float;
};

/// Arrays that every optimizer has, and values of an element that lie in no array.
namespace array {

/// p, the user's.
struct parameter {
  using stored = float;
  template <class T>
  struct field {
    T parameter;
  };
};

/// g, the user's, or what an exchange has made of it. Only read.
struct gradient {
  using stored = const float;
  template <class T>
  struct field {
    T gradient;
  };
};

/// The contiguous exchange buffer, or what an exchange made of a signal.
struct exchanged {
  using stored = float;
  template <class T>
  struct field {
    T exchanged;
  };
};

/// What this rank's signal lost when it was compressed, for passes that say `uses_compression_error` or `receives_compression_error`. In no memory.
struct compression_error {
  using stored = void;
  template <class T>
  struct field {
    T compression_error;
  };
};

/// The element's number in its tensor, modulo 2^24. In no memory, and only read.
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

/// What ranks compare in the place of parameters.
struct compared : state_array {
  template <class T>
  struct field {
    T compared;
  };
};

}  // namespace array

/// The one member of a field, whatever it is called.
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

/// A list of arrays, each once.
template <class... Arrays>
struct arrays {
  static constexpr std::size_t count = sizeof...(Arrays);
  /// Those that lie in memory.
  static constexpr std::size_t stored = (std::size_t{0} + ... + (std::is_void_v<typename Arrays::stored> ? 0U : 1U));

  template <class Array>
  static constexpr bool has = (std::is_same_v<Arrays, Array> || ...);
};

/// The arrays of several lists, each once, in the order in which they come.
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

/// A list, or nothing.
template <bool Condition, class List>
using arrays_if = std::conditional_t<Condition, List, arrays<>>;

/// The fields of all arrays of a list.
template <class T, class List>
struct fields;
template <class T, class... Arrays>
struct fields<T, arrays<Arrays...>> : Arrays::template field<T>... {};

}  // namespace slamb::detail
