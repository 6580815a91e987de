// The exchange of a payload that ranks can add: one all_reduce, which also carries the news of an overflow.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace slamb {

/// Sums `payload` [n] over ranks, unless any rank says that its own must not be used.
///
/// A rank that refuses puts NaN in the first place. Payloads are finite otherwise, so a sum that is NaN there tells all
/// ranks alike, without a round or a byte of its own.
///
/// @param refuse  this rank's payload must not be used
/// @return whether `payload` now holds the sum; false on all ranks if any refused
template <class Communicator, class Executor>
bool all_reduce_unless(bool refuse, std::span<float> payload, Communicator& ranks, const Executor& executor) {
  if (payload.empty()) return !refuse;
  if (refuse) executor.write(payload.data(), std::numeric_limits<float>::quiet_NaN());
  if (ranks.size() > 1) ranks.all_reduce_sum(payload, executor.stream());
  return !std::isnan(executor.read(payload.data()));
}

}  // namespace slamb
