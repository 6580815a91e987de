// expect: optimizers on the host backend are compiled in a .cpp
#include "slamb/slamb.hpp"

slamb::lamb<> optimizer({});
