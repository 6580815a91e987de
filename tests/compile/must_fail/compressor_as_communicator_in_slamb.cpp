// expect: slamb: the Communicator of an optimizer must have rank.. and size
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::slamb<slamb::random_k<>> optimizer({});
