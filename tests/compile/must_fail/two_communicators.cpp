// expect: slamb: two template arguments of an optimizer have the same role
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::slamb<slamb::thread_communicator, slamb::self_communicator> optimizer({}, {});
