// Passes that more than one recipe uses.
#pragma once

#include <cstdint>

#include "slamb/core/real.hpp"
#include "slamb/detail/pass/element.hpp"
#include "slamb/detail/pass/pass.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"

namespace slamb::detail {

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

/// 24 bits of a hash of a word, one to one in the word but for the 8 that are left out.
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

/// What tells elements of all tensors apart: their place in a tensor (modulo 2^24), and the tensor.
struct hash_of_place {
  struct salt {
    std::uint32_t of_tensor;
  };
  SLAMB_HOST_DEVICE static salt constants(std::uint32_t segment) { return {(segment + 1) * 0x9E3779B9U}; }

  template <class Real>
  SLAMB_ELEMENT static word_of<Real> of(const element<Real>& e, const salt& constants) {
    const word_of<Real> place = as_word(e.position) ^ word_of<Real>(constants.of_tensor);
    return place + (place << 7) + (place >> 9);
  }
};

/// Σ h² over all elements, where h is 24 bits of a hash of a value and its place: which values there are, and where. Another in one
/// element gives another sum but for one case in 2^24; in many, in practice always.
/// @tparam Stream  of the values
template <unsigned Stream>
struct fingerprint_of_values : hash_of_place {
  static constexpr unsigned reads = Stream | stream::position;
  static constexpr unsigned writes = 0;
  static constexpr int sums = 1;

  template <class Real, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, const salt& constants, Sums& results) const {
    results.add_square(0, to_real(hashed_to_24_bits(as_word(value(e)) ^ of(e, constants))));
  }

 private:
  template <class Real>
  SLAMB_ELEMENT static const Real& value(const element<Real>& e) {
    static_assert(Stream == stream::parameter || Stream == stream::common || Stream == stream::momentum);
    if constexpr (Stream == stream::parameter)
      return e.parameter;
    else if constexpr (Stream == stream::common)
      return e.common;
    else
      return e.momentum;
  }
};
using fingerprint_of_parameters = fingerprint_of_values<stream::parameter>;
/// Of what parameters have in common where they differ from rank to rank.
using fingerprint_of_common = fingerprint_of_values<stream::common>;
/// Of what has been received, over the first payload plane; places are those within each tile's part of it.
using fingerprint_of_payload = fingerprint_of_values<stream::momentum>;

/// The same of places alone, over what is not selected: selected passes sum nothing else.
struct fingerprint_of_unselected : hash_of_place {
  static constexpr unsigned reads = stream::position;
  static constexpr unsigned writes = 0;
  static constexpr unsigned packs = 0;
  static constexpr bool receives = false;
  static constexpr bool needs_freshness = false;
  static constexpr int sums = 1;

  template <class Real, class Mask, class Sums>
  SLAMB_ELEMENT void operator()(element<Real>& e, const selected_lanes<Real, Mask>& /*at*/, const salt& constants,
                                Sums& results) const {
    results.add_square(0, to_real(hashed_to_24_bits(of(e, constants))));
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

}  // namespace slamb::detail
