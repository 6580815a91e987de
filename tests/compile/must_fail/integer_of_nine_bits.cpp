// expect: integers have 2 to 8 bits
#include "slamb/slamb.hpp"

slamb::one_bit_adam<slamb::self_communicator, slamb::integer<9>> optimizer({}, {});
