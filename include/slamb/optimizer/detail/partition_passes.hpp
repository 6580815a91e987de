// The passes of a partitioned step, beside those of Adam's update: docs/algorithms/partition.md.
#pragma once

#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/parameter.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/pass.hpp"

namespace slamb::detail {

namespace array {

/// The exact parameters of this rank's parts, which the user's parameters follow.
struct exact : state_array {
  static constexpr const char* name = "exact parameters";
  template <class T>
  struct field {
    T exact;
  };
};

}  // namespace array

/// P ← p, except where P is kept because p is P rounded.
struct set_exact {
  using reads = arrays<array::parameter, array::exact>;
  using writes = arrays<array::exact>;
  static constexpr int sums = 0;

  const segment* segments;   ///< of the parts
  const tensor_part* parts;  ///< [tensors]
  bool keeps_cut;            ///< P of parts, which no other rank has
  bool keeps_uncut;          ///< P of tensors that all ranks have whole

  struct kept_type {
    element_type type;
    bool keeps;
  };
  SLAMB_HOST_DEVICE kept_type constants(std::uint32_t segment) const {
    return {segments[segment].data_type, parts[segment].is_cut ? keeps_cut : keeps_uncut};
  }

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, const kept_type& constants, Sums& /*sums*/) const {
    if (!constants.keeps) {
      e.exact = e.parameter;
    } else {
      const auto rounded = rounded_to(constants.type, e.exact);
      e.exact = select(as_word(rounded) == as_word(e.parameter), e.exact, e.parameter);
    }
  }
};

/// ‖P − p‖²
struct sum_unsent : pass_without_constants {
  using reads = arrays<array::parameter, array::exact>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, e.exact - e.parameter);
  }
};

/// ‖p‖²
struct sum_parameters : pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<>;
  static constexpr int sums = 1;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, e.parameter);
  }
};

/// Sends the gradient as the signal.
struct send_gradient : pass_without_constants {
  static constexpr bool follows_gradient = true;
  static constexpr int sums = 0;
  using signal_reads = arrays<array::gradient>;

  template <class Element, class Sums>
  SLAMB_ELEMENT auto signal(const Element& e, no_constants /*constants*/, Sums& results) const {
    results.check_finite(e.gradient);
    return e.gradient;
  }
};

}  // namespace slamb::detail
