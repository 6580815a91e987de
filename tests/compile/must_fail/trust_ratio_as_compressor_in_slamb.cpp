// expect: slamb: the Compressor of an optimizer must be a compressor
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::slamb<slamb::self_communicator, slamb::unit_trust_ratio> optimizer({});
