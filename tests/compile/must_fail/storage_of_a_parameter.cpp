// expect: the first argument of stored_as must be an array of a state, which derives from kit::state_array
#include "slamb/kit.hpp"
#include "slamb/slamb.hpp"

using list =
    slamb::precision::storage<slamb::precision::stored_as<slamb::kit::parameter, slamb::precision::as_bfloat16>>;
slamb::adamw<slamb::precision::mixed<slamb::host_backend, slamb::precision::master_copies, list>> optimizer({}, {});
