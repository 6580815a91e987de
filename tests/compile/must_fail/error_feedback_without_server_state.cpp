// expect: slamb: a template argument of an optimizer has members of an ErrorFeedback, but is none.*F::server_state
#include "slamb/slamb.hpp"

// Does not say if the server keeps its error.
struct half_an_error_feedback {
  static constexpr bool keeps_unsent = false;
  static constexpr bool worker_state = true;
};

slamb::lamb<slamb::int8, half_an_error_feedback> optimizer({}, {});
