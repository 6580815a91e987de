// expect: sends every element in few bits
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::self_communicator, slamb::chain<slamb::random_k<>, slamb::int8>> optimizer({}, {});
