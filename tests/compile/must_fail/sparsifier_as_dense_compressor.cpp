// expect: slamb: the DenseCompressor of basic_zero_one_adam must be no_compressor or a quantizer without scales, such as
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::basic_zero_one_adam<slamb::sign, slamb::two_sided<>, slamb::self_communicator, slamb::host_backend,
                           slamb::exponential_variance_interval, slamb::doubling_local_interval, slamb::random_k<>>
    optimizer({});
