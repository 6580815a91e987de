// expect: choose cannot try a compressor that the caller tells its selection at every step
#include "slamb/slamb.hpp"

using masked = slamb::slamb<slamb::self_communicator, slamb::explicit_mask>;
const auto optimizer = slamb::choose<slamb::lamb<>, masked>({}, {}, {}, {});
