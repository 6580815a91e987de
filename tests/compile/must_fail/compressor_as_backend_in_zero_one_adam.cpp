// expect: slamb: the Backend of an optimizer must be a backend, such as host_backend or cuda_backend
// first of 40 lines
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::self_communicator, slamb::sign, slamb::int8> optimizer({});
