// expect: its ErrorFeedback must have keeps_unsent = true
#include "slamb/slamb.hpp"

slamb::basic_slamb<slamb::random_k<>, slamb::no_error_feedback, slamb::rescaled_trust_ratio<>, slamb::self_communicator,
                   slamb::host_backend>
    optimizer({});
