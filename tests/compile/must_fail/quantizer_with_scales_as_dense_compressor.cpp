// expect: slamb: the DenseCompressor of basic_one_bit must be no_compressor or a quantizer without scales, such as bf16 or
// first of 45 lines
#include "slamb/slamb.hpp"

slamb::basic_one_bit<slamb::sign, slamb::two_sided<>, slamb::unit_trust_ratio, slamb::self_communicator,
                     slamb::host_backend, slamb::fixed_warm_up, slamb::int8>
    optimizer({});
