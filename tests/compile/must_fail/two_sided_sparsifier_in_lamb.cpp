// expect: needs an ErrorFeedback that keeps them at the rank
#include "slamb/slamb.hpp"

slamb::basic_lamb<slamb::random_k<>, slamb::two_sided<>, slamb::layerwise_trust_ratio, slamb::self_communicator,
                  slamb::host_backend>
    optimizer({});
