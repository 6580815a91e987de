// expect: needs a Compressor that is a sparsifier
#include "slamb/slamb.hpp"

// A compressor by its facts, but no sparsifier.
struct quantizer {
  static constexpr bool is_sparsifier = false;
  static constexpr bool payload_is_summable = false;
  static constexpr bool payload_is_constant = true;
  static constexpr int bits_per_element = 8;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::max;
};

slamb::slamb<slamb::self_communicator, quantizer> optimizer({});
