// SLAMB's ErrorFeedback: unsent elements stay in the rank's momentum, and are sent with it later.
#pragma once

#include "slamb/core/concepts.hpp"

namespace slamb {

/// Keeps unsent elements in this rank's momentum, without a buffer. Averaging over ranks and the moving average are linear, so
/// the mean of the ranks' momenta is the momentum of the mean gradient at every step, for any selection.
///
/// *Reference*: SLAMB, ICML 2023, "local error compensation".
struct local_momentum {
  static constexpr bool keeps_unsent = true;
  static constexpr bool worker_state = false;
  static constexpr bool server_state = false;
};

static_assert(error_feedback<local_momentum>);

}  // namespace slamb
