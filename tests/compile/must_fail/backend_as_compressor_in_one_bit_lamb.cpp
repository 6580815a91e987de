// expect: slamb: the Compressor of an optimizer must be a compressor
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::one_bit_lamb<slamb::self_communicator, slamb::host_backend> optimizer({});
