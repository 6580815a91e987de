// expect: basic_lamb without compression has no compression error
#include "slamb/slamb.hpp"

slamb::basic_lamb<slamb::no_compressor, slamb::residual<>, slamb::layerwise_trust_ratio, slamb::self_communicator,
                  slamb::host_backend>
    optimizer({});
