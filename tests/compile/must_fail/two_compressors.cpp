// expect: slamb: two template arguments of an optimizer have the same role, such as two Compressors; leave one out
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::sign, slamb::thread_communicator, slamb::int8> optimizer({}, {});
