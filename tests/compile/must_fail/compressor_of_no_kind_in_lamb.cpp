// expect: must be no_compressor, a quantizer
#include "slamb/slamb.hpp"

// Has the facts of a compressor, but neither encodes nor selects.
struct facts_alone {
  static constexpr int bits_per_element = 8;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;
};

slamb::lamb<facts_alone, slamb::no_error_feedback> optimizer({}, {});
