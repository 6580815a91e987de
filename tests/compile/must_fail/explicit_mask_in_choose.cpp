// expect: choose cannot try a compressor whose selection the caller sets before each step
#include "slamb/slamb.hpp"

using masked = slamb::slamb<slamb::explicit_mask>;
const auto optimizer = slamb::choose<slamb::lamb<>, masked>({}, {}, {}, {});
