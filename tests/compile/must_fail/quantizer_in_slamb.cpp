// expect: its Compressor must be a sparsifier
#include "slamb/slamb.hpp"

slamb::slamb<slamb::self_communicator, slamb::int8> optimizer({}, {});
