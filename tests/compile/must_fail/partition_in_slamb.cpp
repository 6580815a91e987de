// expect: fits none of its roles.*LAMB and AdamW a partition
#include "slamb/slamb.hpp"

slamb::slamb<slamb::sync::partition<>> optimizer({}, {});
