// expect: compile optimizers on the host backend in a .cpp
#include "slamb/slamb.hpp"

slamb::lamb<> optimizer({}, {});
