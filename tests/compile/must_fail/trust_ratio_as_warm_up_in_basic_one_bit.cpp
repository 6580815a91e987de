// expect: slamb: the WarmUp of basic_one_bit must be a warm-up schedule, such as fixed_warm_up
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::basic_one_bit<slamb::sign, slamb::two_sided<>, slamb::unit_trust_ratio, slamb::self_communicator,
                     slamb::host_backend, slamb::unit_trust_ratio>
    optimizer({});
