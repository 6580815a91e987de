// expect: slamb: the ErrorFeedback of an optimizer must be an error feedback
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::basic_lamb<slamb::sign, slamb::int8, slamb::unit_trust_ratio, slamb::self_communicator, slamb::host_backend>
    optimizer({});
