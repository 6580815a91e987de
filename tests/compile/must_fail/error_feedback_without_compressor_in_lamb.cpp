// expect: without compression has no compression error
#include "slamb/slamb.hpp"

slamb::lamb<slamb::residual<>> optimizer({}, {});
