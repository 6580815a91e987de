// expect: needs an ErrorFeedback that keeps them at the rank
#include "slamb/slamb.hpp"

slamb::lamb<slamb::random_k<>, slamb::two_sided<>> optimizer({}, {});
