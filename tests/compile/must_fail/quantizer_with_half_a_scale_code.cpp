// expect: must have a member block, std::uint8_t encode_scale\(float\) const
#include <cstdint>

#include "slamb/slamb.hpp"

// Its encode_scale is not const, so that the exchange could not call it.
struct half_a_code : slamb::integer<4> {
  std::uint8_t encode_scale(float) { return 1; }
  float decode_scale(std::uint8_t) const { return 1.0F; }
};

slamb::lamb<half_a_code> optimizer({}, {});
