// Passes that more than one recipe uses.
#pragma once

#include <cstdint>

#include "slamb/core/element.hpp"
#include "slamb/core/pass.hpp"
#include "slamb/core/real.hpp"

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

/// Σ h² over all elements, where h is 24 bits of a hash of an element's parameter, position and tensor: which parameters there
/// are, and where. Another in one element gives another sum but for one case in 2^24; in many, in practice always.
struct fingerprint_of_parameters {
  static constexpr unsigned reads = stream::parameter | stream::position;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 1;

  struct salt {
    std::uint32_t of_tensor;
  };
  SLAMB_HOST_DEVICE static salt constants(std::uint32_t segment) { return {(segment + 1) * 0x9E3779B9U}; }

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, const salt& constants, Sums& results) const {
    using word = word_of<Real>;
    const word place = as_word(e.position) ^ word(constants.of_tensor);
    word h = as_word(e.parameter) ^
             (place + (place << 7) + (place >> 9));  // one to one in the parameter, as all that follows
    h = h + (h << 11);
    h = h ^ (h >> 15);
    h = h + (h << 5);
    h = h ^ (h >> 13);
    h = h + (h << 17);
    h = h ^ (h >> 16);
    results.add_square(0, to_real(h >> 8));
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
