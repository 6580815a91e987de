// expect: sync::partition sends every parameter; its argument must be a quantizer
#include "slamb/slamb.hpp"

slamb::lamb<slamb::sync::partition<slamb::top_k>> optimizer({}, {});
