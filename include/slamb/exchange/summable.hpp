// The exchange of a payload that ranks can add: one all_reduce, which also carries the news of an overflow and the fingerprint of
// what all ranks must have alike.
#pragma once

#include <cstdint>
#include <span>

#include "slamb/core/arena.hpp"
#include "slamb/core/step_record.hpp"
#include "slamb/exchange/sum_header.hpp"

namespace slamb {

/// Plans a buffer for payloads of up to `elements` floats, with a header in front.
inline region<float> plan_summable(arena& memory, const char* purpose, std::uint64_t elements) {
  return memory.plan<float>(purpose, sum_header::floats + elements);
}

/// The payload in such a buffer: `elements` floats, or none where no buffer was planned.
inline std::span<float> payload_in(std::span<float> buffer) noexcept {
  return buffer.empty() ? buffer : buffer.subspan(sum_header::floats);
}

/// Sums `payload` [n] over ranks. If any rank has seen in this step what is not finite, the step is refused on all; so it is if
/// ranks have parted.
///
/// @param payload  [n] floats, maybe none, with those of a `sum_header` in front
/// @param whole    n, and the floats behind them that have been summed before
/// @param tells    false: what is not finite is exchanged like all else
template <class Base>
void all_reduce_or_refuse(std::span<float> payload, std::uint64_t whole, Base& base, bool tells = true) {
  if (base.ranks.size() == 1) {
    if (tells) base.executor.invoke(refuse_alone{base.record()});
    return;
  }
  float* const header = payload.data() - sum_header::floats;
  base.executor.invoke(write_sum_header{base.record(), header, tells});
  base.ranks.all_reduce_sum_with_header(std::span<float>(header, sum_header::floats + payload.size()),
                                        sum_header::floats, base.executor.stream());
  base.executor.invoke(read_sum_header{base.record(), header, base.ranks.size(), whole});
}

}  // namespace slamb
