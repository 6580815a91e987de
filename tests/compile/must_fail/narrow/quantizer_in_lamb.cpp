// expect: needs #include <slamb/compressed_lamb\.hpp>
#include "slamb/compressor/sign.hpp"
#include "slamb/error_feedback/two_sided.hpp"
#include "slamb/lamb.hpp"

slamb::basic_lamb<slamb::sign, slamb::two_sided<>, slamb::layerwise_trust_ratio, slamb::self_communicator,
                  slamb::host_backend>
    optimizer({});
