// expect: its Compressor must be a sparsifier
#include "slamb/slamb.hpp"

// Has the facts of a compressor, but is no sparsifier.
struct quantizer {
  static constexpr int bits_per_element = 8;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::max;
};

slamb::slamb<slamb::self_communicator, quantizer> optimizer({}, {});
