// expect: slamb: the Compressor of dense_in must be no_compressor or a quantizer without scales, such as bf16 or
#include "slamb/slamb.hpp"

slamb::one_bit_adam<slamb::dense_in<slamb::int8>> optimizer({}, {});
