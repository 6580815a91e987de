// Passes that more than one recipe uses.
#pragma once

#include <cstdint>

#include "slamb/core/element.hpp"
#include "slamb/core/pass.hpp"

namespace slamb {

/// Parameters → exchange buffer.
struct gather_parameters : pass_without_constants {
  static constexpr unsigned reads = stream::parameter;
  static constexpr unsigned writes = stream::exchanged;
  static constexpr int sums = 0;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.exchanged = e.parameter;
  }
};

/// Exchange buffer, scaled → parameters.
struct scatter_parameters : pass_without_constants {
  static constexpr unsigned reads = stream::exchanged;
  static constexpr unsigned writes = stream::parameter;
  static constexpr int sums = 0;

  float scale = 1.0F;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& /*sums*/) const {
    e.parameter = e.exchanged * Real(scale);
  }
};

/// Σ v = Σ (√v)².
struct sum_of_variance : pass_without_constants {
  static constexpr unsigned reads = stream::variance;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 1;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, square_root(e.variance));
  }
};

/// ‖p‖², ‖m‖², ‖v‖².
struct norms_of_model : pass_without_constants {
  static constexpr unsigned reads = stream::parameter | stream::momentum | stream::variance;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 3;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, no_constants /*constants*/, Sums& results) const {
    results.add_square(0, e.parameter);
    results.add_square(1, e.momentum);
    results.add_square(2, e.variance);
  }
};

}  // namespace slamb
