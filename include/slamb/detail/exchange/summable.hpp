// The exchange of a payload by one all_reduce, which also carries the overflow flag and the ranks' fingerprints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

class optimizer_core;

/// Plans a buffer for payloads of up to `elements` floats, with a header in front.
inline region<float> plan_summable(arena& memory, const char* purpose, std::uint64_t elements) {
  return memory.plan<float>(purpose, sum_header::floats + elements);
}

/// The payload in such a buffer: `elements` floats, or none if no buffer was planned.
inline std::span<float> payload_in(std::span<float> buffer) noexcept {
  return buffer.empty() ? buffer : buffer.subspan(sum_header::floats);
}

/// Sums `payload` [n] over ranks. All ranks skip the step if any has found a value that is not finite, or if ranks have diverged.
///
/// @param payload  [n ≥ 0] floats with a `sum_header` in front
/// @param total    n, plus the floats behind it that have been summed before
/// @param flags_overflow    false: values that are not finite are exchanged
void all_reduce_payload(std::span<float> payload, std::uint64_t total, optimizer_core& core,
                        bool flags_overflow = true);

}  // namespace slamb::detail
