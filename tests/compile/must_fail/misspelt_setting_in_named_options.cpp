// expect: beta_1
// first of 15 lines
#include "slamb/slamb.hpp"

slamb::lamb<> optimizer({}, slamb::lamb<>::options_type{.beta_1 = 0.8});
