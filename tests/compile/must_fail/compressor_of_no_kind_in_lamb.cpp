// expect: has bits_per_element, as a quantizer has, but is none
#include "slamb/slamb.hpp"

// Has the properties of a compressor, but neither encodes nor selects.
struct properties_alone {
  static constexpr int bits_per_element = 8;
  static constexpr slamb::segment_scale scale = slamb::segment_scale::none;
};

slamb::lamb<properties_alone, slamb::no_error_feedback> optimizer({}, {});
