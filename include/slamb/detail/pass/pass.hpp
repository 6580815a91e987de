// A pass: one element function applied to every element, with the arrays it touches declared beside it.
//
// A recipe consists of a few passes. A backend runs any pass. A pass is a trivially copyable struct with
//
//     using reads = arrays<…>; using writes = arrays<…>;
//     static constexpr int sums;                      // double-precision sums a tensor
//     static constexpr int maxima;                    // largest values a tensor; may be left out for none
//     static constexpr bool follows_gradient;         // may be left out for false: see below
//     auto constants(std::uint32_t segment) const;    // the constants of a tensor
//     template <class Element, class Sums>
//     void operator()(Element& e, const auto& constants, Sums& results) const;
//
// The bytes of memory traffic per element follow from the lists.
//
// Arrays are types, in lists.
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
#include <cstdint>
#include <type_traits>
#include <utility>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/precision.hpp"

namespace slamb::detail {

/// An array of an optimizer's state: a number for each element, at the places of `segment::state`. Floats, except where the
/// precision says otherwise.
struct state_array {
  using stored = float;
  static constexpr bool is_signed = true;  ///< false: no number is negative, and eight bits need no sign
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

/// The user's parameters, of which `parameter` may be a master copy. Read only: a pass that writes `parameter` writes them too.
struct data {
  using stored = const float;
  template <class T>
  struct field {
    T data;
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
  static constexpr bool is_signed = false;
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

/// The pointer to an array, as it is stored with this precision.
template <class Array, class Precision>
struct stored_pointer {
  using type = typename Array::stored*;
};
template <class Array, class Precision>
requires(std::is_base_of_v<state_array, Array>) struct stored_pointer<Array, Precision> {
  using type = typename storage_of_t<Array, Precision>::pointer;
};
template <class Precision>
struct stored_pointer<array::parameter, Precision> {
  using type = typename Precision::parameter_pointer;
};
template <class Precision>
struct stored_pointer<array::gradient, Precision> {
  using type = typename Precision::gradient_pointer;
};
template <class Precision>
struct stored_pointer<array::data, Precision> {
  using type = typename Precision::data_pointer;
};
template <class Array, class Precision>
using stored_pointer_t = typename stored_pointer<Array, Precision>::type;

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

/// The values of one element that a pass works on: those of the arrays in a list.
template <class Real, class List>
struct element : fields<Real, List> {
  using real = Real;
};

/// True if pass P does nothing for a tensor without a gradient: P has `follows_gradient = true`. Its sums are then 0, and the
/// exchange buffer that it would write is filled with 0.
template <class P>
constexpr bool follows_gradient() noexcept {
  if constexpr (requires { P::follows_gradient; })
    return P::follows_gradient;
  else
    return false;
}

/// The number of maxima that pass P takes of each tensor.
template <class P>
constexpr int maxima_of() noexcept {
  if constexpr (requires { P::maxima; })
    return P::maxima;
  else
    return 0;
}

/// The doubles that a pass leaves for each tile: its sums, then its maxima.
template <class P>
constexpr int results_of() noexcept {
  return P::sums + maxima_of<P>();
}

/// The tables of a model, and the exchange buffer. Trivially copyable; in the backend's memory. Passes run on a `view_in`, which
/// also knows how arrays are stored.
struct model_view {
  const segment* segments = nullptr;        ///< [tensors]
  const tile* tiles = nullptr;              ///< [tiles]
  const std::size_t* first_tile = nullptr;  ///< [tensors + 1] the number of each tensor's first tile; then of all
  float* exchanged = nullptr;  ///< the exchange buffer: elements exchanged_first … of all tensors, end to end
  std::uint64_t exchanged_first = 0;
  bool gradient_is_exchanged = false;     ///< the gradient is read from the exchange buffer
  const float* gradient_scale = nullptr;  ///< multiplies the segments' gradients as they are read; null: 1
  const std::uint32_t* skip =
      nullptr;  ///< if it points to a value other than 0, the step is skipped and passes do nothing
};

// A member of a view that only some precisions need. It is a base because views are parameters of kernels: as a [[no_unique_address]]
// member, nvcc 13.0 would lay out the view on the device in more bytes than on the host.
template <class Draws>
struct draws_in_view {
  Draws draws{};  ///< of stochastic rounding
};
template <>
struct draws_in_view<no_draws> {};

/// A model whose arrays are stored with this precision: the view on which passes run.
template <class Precision = single_precision>
struct view_in : model_view, draws_in_view<typename Precision::draws> {
  using precision = Precision;

  view_in() = default;
  view_in(const model_view& tables) : model_view(tables) {}  // NOLINT(google-explicit-constructor): without draws
};

/// A view with state arrays added, [state elements] each.
template <class View, class List>
struct state_view;
template <class View, class... Arrays>
struct state_view<View, arrays<Arrays...>>
    : View, Arrays::template field<stored_pointer_t<Arrays, typename View::precision>>... {};

/// The lists that a pass declares; others are empty. A pass that only forms a signal reads and writes nothing else.
template <class P>
struct reads_of {
  using type = arrays<>;
};
template <class P>
requires requires { typename P::reads; }
struct reads_of<P> {
  using type = typename P::reads;
};
template <class P>
struct writes_of {
  using type = arrays<>;
};
template <class P>
requires requires { typename P::writes; }
struct writes_of<P> {
  using type = typename P::writes;
};
template <class P>
struct signal_reads_of {
  using type = arrays<>;
};
template <class P>
requires requires { typename P::signal_reads; }
struct signal_reads_of<P> {
  using type = typename P::signal_reads;
};
template <class P>
struct packs_of {
  using type = arrays<>;
};
template <class P>
requires requires { typename P::packs; }
struct packs_of<P> {
  using type = typename P::packs;
};

/// The arrays that a pass reads from memory and writes to it.
template <class P>
using accessed_by =
    union_of_t<typename reads_of<P>::type, typename writes_of<P>::type, typename signal_reads_of<P>::type>;

/// The arrays of a pass's element: all that it declares and, with a signal, the received value. Or `works_on`, if the pass has
/// it.
template <class P>
struct arrays_of {
  using type =
      union_of_t<accessed_by<P>, typename packs_of<P>::type, arrays<array::exchanged, array::compression_error>>;
};
template <class P>
requires requires { typename P::works_on; }
struct arrays_of<P> {
  using type = typename P::works_on;
};
template <class P, class Real>
using element_of = element<Real, typename arrays_of<P>::type>;

/// The state arrays of a list.
template <class List>
struct state_of;
template <class... Arrays>
struct state_of<arrays<Arrays...>> {
  using type = union_of_t<arrays<>, arrays_if<std::is_base_of_v<state_array, Arrays>, arrays<Arrays>>...>;
};

/// Pointers to the arrays of a list, taken from any view that has them. Trivially copyable.
template <class Precision, class List>
struct view_with;
template <class Precision, class... Arrays>
struct view_with<Precision, arrays<Arrays...>> : view_in<Precision>,
                                                 Arrays::template field<stored_pointer_t<Arrays, Precision>>... {
  view_with() = default;
  template <class View>
  view_with(const View& view) : view_in<Precision>(view) {  // NOLINT(google-explicit-constructor): a part of it
    static_assert(
        (std::is_base_of_v<typename Arrays::template field<stored_pointer_t<Arrays, Precision>>, View> && ...),
        "slamb: a pass reads or writes a state array that its view does not have");
    ((value_of<Arrays, stored_pointer_t<Arrays, Precision>>(*this) =
          value_of<Arrays, stored_pointer_t<Arrays, Precision>>(view)),
     ...);
  }
};

/// P, if it has the members of a pass.
template <class P>
struct checked_pass {
  static_assert(std::is_trivially_copyable_v<P>,
                "slamb: a pass must be trivially copyable, so that it can be copied to a device");
  static_assert(
      requires(const P& pass) { pass.constants(std::uint32_t{}); },
      "slamb: a pass must have constants(std::uint32_t tensor) const, marked SLAMB_HOST_DEVICE, which returns the "
      "values "
      "that are equal within a tensor; derive it from kit::pass_without_constants if there are none");
  using type = P;
};
template <class P, class Precision = single_precision>
using view_of = view_with<Precision, typename state_of<accessed_by<typename checked_pass<P>::type>>::type>;

/// The arrays of a pass within one tile, each from its first element; null for an array without memory.
template <class List, class Precision = single_precision>
struct tile_pointers;
template <class... Arrays, class Precision>
struct tile_pointers<arrays<Arrays...>, Precision> : Arrays::template field<stored_pointer_t<Arrays, Precision>>... {
  std::uint32_t first_position = 0;  ///< `array::position` of the first element

  /// @param number  of the tile `t`
  template <class View>
  SLAMB_HOST_DEVICE tile_pointers(const View& view, const segment& s, const tile& t, std::size_t number)
      : Arrays::template field<stored_pointer_t<Arrays, Precision>>{where<Arrays>(view, s, t, number)}...,
        first_position(static_cast<std::uint32_t>(t.first) & 0xFFFFFFU) {}

  /// The arrays of a payload, in this order, from its element `first` on.
  template <std::size_t Planes>
  SLAMB_HOST_DEVICE tile_pointers(float* const (&planes)[Planes], std::uint64_t first)
      : tile_pointers(planes, first, std::make_index_sequence<sizeof...(Arrays)>()) {}

 private:
  template <std::size_t Planes, std::size_t... Plane>
  SLAMB_HOST_DEVICE tile_pointers(float* const (&planes)[Planes], std::uint64_t first,
                                  std::index_sequence<Plane...> /*planes*/)
      : Arrays::template field<stored_pointer_t<Arrays, Precision>>{
            from_element(Plane < Planes ? planes[Plane < Planes ? Plane : 0] : nullptr, first)}... {}

  template <class Array, class View>
  SLAMB_HOST_DEVICE static stored_pointer_t<Array, Precision> where(const View& view, const segment& s, const tile& t,
                                                                    [[maybe_unused]] std::size_t number) {
    if constexpr (std::is_void_v<typename Array::stored>)
      return nullptr;
    else if constexpr (std::is_same_v<Array, array::parameter>)
      return Precision::parameter_of(s, t.first);
    else if constexpr (std::is_same_v<Array, array::data>)
      return Precision::data_of(s, t.first);
    else if constexpr (std::is_same_v<Array, array::exchanged>)
      return from_element(view.exchanged, s.first + t.first - view.exchanged_first);
    else if constexpr (std::is_same_v<Array, array::gradient>)
      return view.gradient_is_exchanged
                 ? Precision::exchanged_gradient(where<array::exchanged>(view, s, t, number))
                 : Precision::gradient_of(s, t.first, view.gradient_scale == nullptr ? 1.0F : *view.gradient_scale);
    else
      return from_tile(value_of<Array, stored_pointer_t<Array, Precision>>(view), s.state + t.first, number);
  }
};

/// The base of passes without constants of tensors.
struct pass_without_constants {
  struct no_constants {};

  SLAMB_HOST_DEVICE static no_constants constants(std::uint32_t /*segment*/) { return {}; }
};

}  // namespace slamb::detail
