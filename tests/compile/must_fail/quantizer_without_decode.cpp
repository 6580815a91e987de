// expect: q\.[ a-z]*decode<float>\(code, scale\)
#include "slamb/slamb.hpp"

// Encodes, but cannot decode.
struct one_way {
  static constexpr int bits_per_element = 1;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::l2;

  slamb::scale_sharing scales = slamb::scale_sharing::fused;

  template <class Real>
  slamb::word_of<Real> encode(const Real& x, const Real&, const Real&) const {
    using slamb::as_word;
    return as_word(x) >> 31;
  }
};

slamb::one_bit_adam<slamb::self_communicator, one_way> optimizer({}, {});
