// expect: the third argument of precision::mixed must be a list precision::storage
#include "slamb/slamb.hpp"

slamb::adamw<slamb::precision::mixed<slamb::host_backend, slamb::precision::master_copies, slamb::int8>> optimizer({},
                                                                                                                   {});
