// expect: needs #include <slamb/compressed_lamb\.hpp>
#include "slamb/compressor/sign.hpp"
#include "slamb/lamb.hpp"

slamb::lamb<slamb::sign> optimizer({}, {});
