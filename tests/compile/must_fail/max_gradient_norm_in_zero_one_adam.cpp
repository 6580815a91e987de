// expect: slamb: max_gradient_norm is a setting of basic_lamb .lamb, adamw. only
// first of 20 lines
#include "slamb/slamb.hpp"

slamb::zero_one_adam<> optimizer({}, {.beta1 = 0.8, .max_gradient_norm = 1});
