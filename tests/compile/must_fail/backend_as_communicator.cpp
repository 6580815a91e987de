// expect: slamb: the third argument of an optimizer's constructor is its Communicator
#include "slamb/slamb.hpp"

slamb::lamb<slamb::int8> optimizer({}, {}, slamb::host_backend{.threads = 1});
