// expect: is_policy<slamb::fixed_warm_up.*fits none of its roles|fits none of its roles.*is_policy<slamb::fixed_warm_up
#include "slamb/slamb.hpp"

slamb::lamb<slamb::int8, slamb::fixed_warm_up> optimizer({}, {});
