// expect: a template argument of an optimizer is const
#include "slamb/slamb.hpp"

slamb::lamb<const slamb::int4> optimizer({}, {});
