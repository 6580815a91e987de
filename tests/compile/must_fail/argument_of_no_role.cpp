// expect: slamb: a template argument of an optimizer fits none of its roles.*a Compressor .such as int8
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::lamb<float> optimizer({}, {});
