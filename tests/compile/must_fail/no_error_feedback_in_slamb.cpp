// expect: its ErrorFeedback must have keeps_unsent = true
#include "slamb/slamb.hpp"

slamb::slamb<slamb::no_error_feedback> optimizer({}, {});
