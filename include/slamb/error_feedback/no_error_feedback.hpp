// The null ErrorFeedback: nothing is lost, or what is lost is forgotten.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Keeps nothing. For exchanges that lose nothing.
struct no_error_feedback {
  static constexpr bool keeps_unsent = false;
  static constexpr bool worker_state = false;
  static constexpr bool server_state = false;
};

static_assert(error_feedback<no_error_feedback>);

}  // namespace slamb
