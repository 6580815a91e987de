// expect: slamb: a template argument of an optimizer fits none of its roles.*all but 0/1 Adam a TrustRatio
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::unit_trust_ratio> optimizer({}, {});
