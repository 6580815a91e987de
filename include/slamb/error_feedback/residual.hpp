// ErrorFeedback at the sender: a rank's compression error is added to its next signal.
#pragma once

#include <type_traits>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/concepts.hpp"

namespace slamb {

/// Keeps a worker error on every rank, e ← x + e − decode(encode(x + e)): an array of Storage, [state elements]. Drops the
/// compression error of the mean, in the second phase.
///
/// *Reference*: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al., "Error feedback
/// fixes SignSGD", ICML 2019.
/// *Cost*: 4 bytes an element and rank with float, 2 with bfloat16, which rounds the errors themselves.
template <class Storage = float>
struct residual {
  static_assert(std::is_same_v<Storage, float> || std::is_same_v<Storage, bfloat16>,
                "slamb: errors are stored as float or slamb::bfloat16");
  using storage_type = Storage;  ///< type of an error

  static constexpr bool keeps_unsent = false;
  static constexpr bool worker_state = true;
  static constexpr bool server_state = false;
};

static_assert(error_feedback<residual<>> && error_feedback<residual<bfloat16>>);

}  // namespace slamb
