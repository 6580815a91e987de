// How messages of codes carry the news of an overflow: their first scale is NaN. For an executor to invoke, by one thread or,
// since there are as many messages as ranks, by several at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/core/step_record.hpp"

namespace slamb {

/// Scale number `index` of a message.
SLAMB_HOST_DEVICE inline float* scale_in(std::byte* message, std::uint64_t index) noexcept {
  return reinterpret_cast<float*>(message) + index;
}

/// Sets the first scale of each message to 0, for messages in which no other is written.
struct start_messages {
  std::byte* messages;
  std::uint64_t message_bytes;
  std::uint64_t count;

  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    for (std::uint64_t i = thread; i < count; i += threads) *scale_in(messages + i * message_bytes, 0) = 0.0F;
  }
};

/// Sets it to NaN if this rank has seen what is not finite.
struct tell_by_scales {
  const step_record* record = nullptr;  ///< null: nothing is told
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  SLAMB_HOST_DEVICE bool has_to_tell() const { return record != nullptr && record->not_finite != 0; }
  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    if (!has_to_tell()) return;
    for (std::uint64_t i = thread; i < count; i += threads)
      *scale_in(messages + i * message_bytes, 0) = as_real(std::uint32_t{0x7FC00000U});
  }
};

/// Refuses the step if it is not finite in a message of any rank.
struct refuse_by_scales {
  step_record* record = nullptr;
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  /// Of messages `thread`, `thread` + `threads`, ….
  SLAMB_HOST_DEVICE bool has_to_refuse(unsigned thread = 0, unsigned threads = 1) const {
    bool found = false;  // without leaving the loop, so that a thread waits once for all that it reads
    for (std::uint64_t i = thread; i < count; i += threads) {
      const std::uint32_t bits = as_word(*scale_in(messages + i * message_bytes, 0));
      found |= (bits & 0x7F800000U) == 0x7F800000U;
    }
    return found;
  }
  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    if (has_to_refuse(thread, threads)) record->refused = 1;
  }
};

}  // namespace slamb
