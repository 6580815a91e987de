// expect: slamb: a template argument of an optimizer fits none of its roles.*0/1 Adam a VarianceSchedule
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::fixed_warm_up> optimizer({}, {});
