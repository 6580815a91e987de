// expect: slamb: the Communicator of an optimizer must have rank.. and size.*lamb and adamw take no Compressor
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::lamb<slamb::int8> optimizer({});
