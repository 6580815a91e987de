// expect: slamb: the Backend of an optimizer must be a backend, as host_backend and cuda_backend are
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::self_communicator, slamb::sign, slamb::int8> optimizer({});
