// expect: slamb: the Compressor of an optimizer must be one
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::slamb<slamb::self_communicator, slamb::unit_trust_ratio> optimizer({});
