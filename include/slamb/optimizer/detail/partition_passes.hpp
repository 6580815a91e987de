// The passes of a partitioned step, beside those of Adam's update: docs/algorithms/partition.md.
#pragma once

#include "slamb/core/config.hpp"
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

/// P ← p
struct set_exact : pass_without_constants {
  using reads = arrays<array::parameter>;
  using writes = arrays<array::exact>;
  static constexpr int sums = 0;

  template <class Element, class Sums>
  SLAMB_ELEMENT void operator()(Element& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.exact = e.parameter;
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
