// The passes that every optimizer runs, and the type that holds any of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/detail/rounding.hpp"
#include "slamb/core/half.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/one_of.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/precision.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

/// x rounded to the nearest number of a type.
template <class Real>
SLAMB_ELEMENT Real rounded_to(element_type type, const Real& x) {
  if (type == element_type::float32) return x;
  return type == element_type::bfloat16 ? Real(real_of_bfloat16_bits(nearest_bfloat16_bits(x)))
                                        : Real(real_of_half_bits<Real>(half_bits(x)));
}

/// Master copies follow the user's parameters where these are not the rounded copies: at the start, and after something else has
/// written them.
struct reload_masters {
  using reads = arrays<array::data, array::parameter>;
  using writes = arrays<array::parameter>;
  static constexpr int sums = 0;

  const segment* segments;

  struct types {
    element_type of_data;
  };
  SLAMB_HOST_DEVICE types constants(std::uint32_t segment) const { return {segments[segment].data_type}; }

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const types& constants, Sums& /*sums*/) const {
    const auto rounded = rounded_to(constants.of_data, e.parameter);
    e.parameter = select(as_word(rounded) == as_word(e.data), e.parameter, e.data);
  }
};

/// Master copies → the user's parameters, rounded.
struct round_masters : pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& /*e*/, no_constants /*constants*/, Sums& /*sums*/) const {}
};

/// Parameters → exchange buffer.
struct gather_parameters : pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<array::exchanged>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.exchanged = e.parameter;
  }
};

/// Exchange buffer, scaled → parameters.
struct scatter_parameters : pass_without_constants {
  using reads = arrays<array::exchanged>;
  using writes = arrays<array::parameter>;
  static constexpr int sums = 0;

  float scale = 1.0F;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.parameter = e.exchanged * Real(scale);
  }
};

/// Exchange buffer → parameters, to the bit.
struct restore_parameters : pass_without_constants {
  using reads = arrays<array::exchanged>;
  using writes = arrays<array::parameter>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.exchanged;
  }
};

/// This rank's gradient → exchange buffer. Checks that it is finite.
struct gather_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient>;
  using writes = arrays<array::exchanged>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
    e.exchanged = e.gradient;
  }
};

/// Checks that the gradient is finite.
struct check_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient>;
  using writes = arrays<>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
  }
};

/// Checks that the gradient is finite, and sums ‖g‖².
struct sum_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
    results.add_square(0, e.gradient);
  }
};

/// This rank's gradient, scaled → the node's.
struct gather_share_of_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient>;
  using writes = arrays<array::exchanged>;
  static constexpr int sums = 0;

  float scale = 1.0F;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    using Real = typename Element::real;
    e.exchanged = e.gradient * Real(scale);
  }
};

/// Σ v = Σ (√v)².
struct sum_of_variance : pass_without_constants {
  using reads = arrays<array::variance>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, square_root(e.variance));
  }
};

/// 24 bits of a hash of a word. The hash is one to one; 8 of its bits are cut off.
template <class Word>
SLAMB_ELEMENT auto hashed_to_24_bits(Word h) {
  h = h + (h << 11);
  h = h ^ (h >> 15);
  h = h + (h << 5);
  h = h ^ (h >> 13);
  h = h + (h << 17);
  h = h ^ (h >> 16);
  return h >> 8;
}

/// The hash of an element's place: its number in the tensor (modulo 2^24), and the tensor.
struct hash_of_place {
  struct salt {
    std::uint32_t of_tensor;
  };
  SLAMB_HOST_DEVICE static salt constants(std::uint32_t segment) { return {(segment + 1) * 0x9E3779B9U}; }

  template <class Element>
  SLAMB_ELEMENT static auto of(const Element& e, const salt& constants) {
    using Real = typename Element::real;
    const word_of<Real> place = as_word(e.position) ^ word_of<Real>(constants.of_tensor);
    return place + (place << 7) + (place >> 9);
  }
};

/// The fingerprint of an array: Σ h² over all elements, where h is 24 bits of a hash of the value and its place. A difference in
/// one element changes the sum except in one case of 2^24; differences in many elements change it practically always.
/// @tparam Array  the array
template <class Array>
struct fingerprint_of_values : hash_of_place {
  using reads = arrays<Array, array::position>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const salt& constants, Sums& results) const {
    results.add_square(
        0, to_real(hashed_to_24_bits(as_word(value_of<Array, typename Element::real>(e)) ^ of(e, constants))));
  }
};
using fingerprint_of_parameters = fingerprint_of_values<array::parameter>;
/// The fingerprint of the anchor, which is equal on all ranks when parameters are not.
using fingerprint_of_anchor = fingerprint_of_values<array::compared>;
/// The fingerprint of the received payload, over its first array. Places are within each tile's part of it.
using fingerprint_of_payload = fingerprint_of_values<array::momentum>;

/// Σ ±g, with signs that depend on the place, or Σ g². Gradients that differ by more than rounding differ in the first sum by about the norm
/// of their difference.
struct projection_of_gradient : hash_of_place {
  static constexpr bool follows_gradient = true;
  using reads = arrays<array::gradient, array::position>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  bool is_signed = true;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const salt& constants, Sums& results) const {
    if (is_signed)
      results.add(0, as_real(as_word(e.gradient) ^ (hashed_to_24_bits(of(e, constants)) << 31)));
    else
      results.add_square(0, e.gradient);
  }
};

/// The fingerprint of a selection: a sum over the places of unselected elements, the only ones that sparse passes sum.
struct fingerprint_of_unselected : hash_of_place {
  using reads = arrays<array::position>;
  using writes = arrays<>;
  using packs = arrays<>;
  static constexpr bool receives = false;
  static constexpr bool needs_discount = false;
  static constexpr int sums = 1;

  template <class Element, class Lanes, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const Lanes& /*at*/, const salt& constants, Sums& results) const {
    results.add_square(0, to_real(hashed_to_24_bits(of(e, constants))));
  }
};

/// ‖p‖², ‖m‖², ‖v‖².
struct norms_of_model : pass_without_constants {
  using reads = arrays<array::parameter, array::momentum, array::variance>;
  using writes = arrays<>;
  static constexpr int sums = 3;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, e.parameter);
    results.add_square(1, e.momentum);
    results.add_square(2, e.variance);
  }
};

/// One of the passes that every optimizer runs.
using model_pass =
    one_of<check_gradient, gather_gradient, gather_share_of_gradient, sum_gradient, gather_parameters,
           scatter_parameters, restore_parameters, reload_masters, round_masters, fingerprint_of_parameters,
           fingerprint_of_anchor, projection_of_gradient, norms_of_model, sum_of_variance>;

/// A model for these passes, whatever the precision of its arrays: all that a view of any precision may have.
struct any_view : model_view {
  rounding_draws draws{};  ///< of stochastic rounding
  array_memory momentum{};
  array_memory variance{};
  float* compared = nullptr;  ///< array::compared
};

}  // namespace slamb::detail
