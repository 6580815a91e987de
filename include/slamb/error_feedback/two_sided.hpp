// ErrorFeedback on both sides: the worker error of a rank's signal, and the server error of the mean of its chunk.
#pragma once

#include <type_traits>

#include "slamb/core/bfloat16.hpp"
#include "slamb/core/concepts.hpp"

namespace slamb {

/// Keeps two arrays of Storage on every rank: the worker error of the model, e ← x + e − decode(encode(x + e)), and the server
/// error of the chunk that the rank averages, s ← y + s − decode(encode(y + s)).
///
/// *Reference*: 1-bit Adam (arXiv 2102.02888), algorithm 1; Tang et al., "DoubleSqueeze", ICML 2019.
/// *Cost*: (1 + 1/N) · 4 bytes an element and rank with float, half as much with bfloat16, which rounds the errors
/// themselves.
template <class Storage = float>
struct two_sided {
  static_assert(std::is_same_v<Storage, float> || std::is_same_v<Storage, bfloat16>,
                "slamb: errors are stored as float or slamb::bfloat16");
  using storage_type = Storage;  ///< type of an error

  static constexpr bool keeps_unsent = false;
  static constexpr bool worker_state = true;
  static constexpr bool server_state = true;
};

static_assert(error_feedback<two_sided<>> && error_feedback<two_sided<bfloat16>>);

}  // namespace slamb
