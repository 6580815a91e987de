// expect: slamb: the Compressor of dense_in must be no_compressor or a quantizer without scales, such as
#include "slamb/slamb.hpp"

slamb::zero_one_adam<slamb::dense_in<slamb::random_k<>>> optimizer({}, {});
