// expect: has bits_per_element, as a quantizer has, but is none
#include "slamb/slamb.hpp"

struct wide : slamb::int8 {
  static constexpr int bits_per_element = 33;
};

slamb::lamb<wide> optimizer({}, {});
