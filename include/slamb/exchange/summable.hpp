// The exchange of a payload that ranks can add: one all_reduce, which also carries the news of an overflow.
#pragma once

#include <span>

#include "slamb/core/step_record.hpp"

namespace slamb {

/// Sums `payload` [n] over ranks. If any rank has seen in this step what is not finite, the step is refused on all.
///
/// A rank that has puts NaN in the first place. Payloads are finite otherwise, so a sum that is NaN there tells all ranks
/// alike, without a round or a byte of its own.
template <class Base>
void all_reduce_or_refuse(std::span<float> payload, Base& base) {
  if (payload.empty() || base.ranks.size() == 1) return base.executor.invoke(refuse_alone{base.record()});
  base.executor.invoke(tell_by_nan{base.record(), payload.data()});
  base.ranks.all_reduce_sum(payload, base.executor.stream());
  base.executor.invoke(refuse_by_nan{base.record(), payload.data()});
}

}  // namespace slamb
