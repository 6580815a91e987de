// expect: slamb: the TrustRatio of an optimizer must be a trust ratio
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::slamb<slamb::self_communicator, slamb::random_k<>, slamb::host_backend> optimizer({});
