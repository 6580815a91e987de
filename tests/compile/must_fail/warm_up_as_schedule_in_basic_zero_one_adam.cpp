// expect: slamb: the VarianceSchedule and the LocalSchedule of basic_zero_one_adam must be schedules
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::basic_zero_one_adam<slamb::sign, slamb::two_sided<>, slamb::self_communicator, slamb::host_backend,
                           slamb::fixed_warm_up>
    optimizer({});
