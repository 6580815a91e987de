// expect: slamb: max_gradient_norm is a setting of basic_lamb .lamb, adamw. only
// first of 20 lines
#include "slamb/slamb.hpp"

slamb::slamb<> optimizer({}, {.max_gradient_norm = 1.0});
