// What messages of codes carry beside codes and scales: the news of an overflow, which is a first scale of NaN, and at their end
// the fingerprint of what all ranks must have alike. For an executor to invoke, by one thread or, since there are as many
// messages as ranks, by several at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/core/step_record.hpp"

namespace slamb {

/// Scale number `index` of a message.
SLAMB_HOST_DEVICE inline float* scale_in(std::byte* message, std::uint64_t index) noexcept {
  return reinterpret_cast<float*>(message) + index;
}

/// The fingerprint in a message, which ends with it.
SLAMB_HOST_DEVICE inline std::uint64_t* fingerprint_in(std::byte* message, std::uint64_t message_bytes) noexcept {
  return reinterpret_cast<std::uint64_t*>(message + message_bytes) - 1;
}

/// Sets the first scale of each message to 0, for messages in which no other is written, and the fingerprint to that of the
/// step that has begun.
struct start_messages {
  const step_record* record = nullptr;  ///< null: messages have no fingerprint
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    for (std::uint64_t i = thread; i < count; i += threads) {
      std::byte* const message = messages + i * message_bytes;
      *scale_in(message, 0) = 0.0F;
      if (record != nullptr) *fingerprint_in(message, message_bytes) = fingerprint_of(*record);
    }
  }
};

/// Sets the first scale to NaN if this rank has seen what is not finite.
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

/// Refuses the step if the first scale is not finite in a message of any rank.
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

/// Refuses the step if the fingerprint in a message of any rank is not that of this one, or if this one's node has parted. Where the
/// step has been refused for an overflow, all ranks know it, and nothing is taken by which they would part.
struct compare_fingerprints {
  step_record* record = nullptr;
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    if (record->refused != 0 && record->parted == 0 && record->node_parted == 0) return;
    const std::uint64_t own = fingerprint_of(*record);
    bool differs = false;
    for (std::uint64_t i = thread; i < count; i += threads)
      differs |= *fingerprint_in(messages + i * message_bytes, message_bytes) != own;
    if (differs || record->node_parted != 0) note_difference(*record);
  }
};

/// Notes some of what all ranks have received alike: the first scales of up to four messages, and the first codes of the first.
struct note_received {
  step_record* record = nullptr;
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t scale_bytes = 0;
  bool has_word_of_codes = false;  ///< the first message has 32 bits of codes, and not of padding

  SLAMB_HOST_DEVICE void operator()() const {
    std::uint64_t received = has_word_of_codes ? as_word(*scale_in(messages + scale_bytes, 0)) : 0;
    for (std::uint64_t i = 0; i < 4 && i < count; ++i)
      received = detail::hash_with(received, as_word(*scale_in(messages + i * (count - 1) / 3 * message_bytes, 0)));
    record->received = received;
  }
};

}  // namespace slamb
