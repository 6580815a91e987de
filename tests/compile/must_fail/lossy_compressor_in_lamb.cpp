// expect: basic_lamb sends whole gradients
#include "slamb/slamb.hpp"

slamb::basic_lamb<slamb::random_k<>, slamb::no_error_feedback, slamb::layerwise_trust_ratio, slamb::self_communicator,
                  slamb::host_backend>
    optimizer({});
