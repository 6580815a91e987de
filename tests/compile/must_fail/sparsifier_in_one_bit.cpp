// expect: sends every element in few bits
#include "slamb/slamb.hpp"

slamb::one_bit_adam<slamb::self_communicator, slamb::random_k<>> optimizer({}, {});
