// expect: an optimizer owns its Communicator
#include "slamb/slamb.hpp"

slamb::self_communicator mine;
slamb::lamb<slamb::self_communicator&> optimizer({}, {}, mine);
