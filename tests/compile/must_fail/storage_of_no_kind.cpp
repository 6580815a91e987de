// expect: the second argument of stored_as must be as_floats, as_bfloat16 or as_eight_bits
#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"

using list = slamb::precision::storage<slamb::precision::stored_as<slamb::kit::momentum, slamb::bf16>>;
slamb::adamw<slamb::precision::mixed<slamb::host_backend, slamb::precision::master_copies, list>> optimizer({}, {});
