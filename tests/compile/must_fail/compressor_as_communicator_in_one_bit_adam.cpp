// expect: slamb: the Communicator of an optimizer must have rank.. and size
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::one_bit_adam<slamb::sign> optimizer({});
