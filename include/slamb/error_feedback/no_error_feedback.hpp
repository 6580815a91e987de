// The null ErrorFeedback: compression errors are dropped.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Keeps no errors. For exchanges without loss, or when errors may be dropped.
struct no_error_feedback {
  static constexpr bool keeps_unsent = false;
  static constexpr bool worker_state = false;
  static constexpr bool server_state = false;
};

static_assert(error_feedback<no_error_feedback>);

}  // namespace slamb
