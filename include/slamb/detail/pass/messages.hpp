// The content of quantized messages beside the codes: a header with the overflow flag and the sender's fingerprint, and scales. A
// launcher invokes these functions in one thread or in several, because there are as many messages as ranks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/quantized_pass.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/pass/wire_layout.hpp"

namespace slamb::detail {

/// The scale of `count` elements. `total` is the sum of their squares or magnitudes, or their largest magnitude.
template <segment_scale Scale>
SLAMB_HOST_DEVICE float scale_of(double total, std::uint64_t count) {
  if (count == 0) return 0.0F;
  if constexpr (Scale == segment_scale::l2) return static_cast<float>(std::sqrt(total / static_cast<double>(count)));
  if constexpr (Scale == segment_scale::l1) return static_cast<float>(total / static_cast<double>(count));
  return static_cast<float>(total);
}

/// Properties of a quantizer's scales.
template <quantizer Quantizer>
struct shared_scales {
  /// True if tiles share scales, which are computed after all tiles.
  static constexpr bool exist = Quantizer::scale != segment_scale::none && !requires(const Quantizer& q) { q.block; };
  /// True if codes depend on these scales, so that they are computed before encoding.
  static constexpr bool are_known_first = exist && !capability::encodes_without_scale<Quantizer>;
};

/// Tiles that share a scale, and the places where it is written.
struct scale_entry {
  std::uint64_t first_tile = 0;  ///< in the table's tiles
  std::uint64_t last_tile = 0;
  std::uint64_t first_place = 0;  ///< in the table's places
  std::uint64_t last_place = 0;
};

/// All scales of one phase. Trivially copyable; pointers are in the backend's memory space.
struct scale_table {
  const scale_entry* groups = nullptr;
  const std::uint64_t* tiles = nullptr;   ///< numbers of tiles, group by group
  const std::uint64_t* places = nullptr;  ///< floats from the first message on, group by group
  std::size_t group_count = 0;
};

/// The arrays of a scale_table, made on the host; empty if tiles share no scales.
struct host_scale_table {
  std::vector<scale_entry> groups;
  std::vector<std::uint64_t> tiles;
  std::vector<std::uint64_t> places;

  /// Scales of the signal, in the messages to all ranks.
  void assign_sent(const wire_layout& wire);

  /// Scales of the mean of this rank's chunk, in the message to all.
  ///
  /// @param placed  [all tiles] places of the codes of each
  /// @param own     the tiles of the chunk
  void assign_averaged(const wire_layout& wire, std::span<const wire_tile> placed, std::span<const std::size_t> own);

 private:
  static bool has_shared_scales(const wire_layout& wire) noexcept {
    return wire.scales().of == scale_granularity::fused || wire.scales().of == scale_granularity::per_tensor;
  }
  void clear() noexcept {
    groups.clear();
    tiles.clear();
    places.clear();
  }
  void begin() { groups.push_back({tiles.size(), tiles.size(), places.size(), places.size()}); }
  void end() noexcept {
    if (groups.empty()) return;
    groups.back().last_tile = tiles.size();
    groups.back().last_place = places.size();
  }
};

/// The first bytes of a message, before scales and codes of any format.
struct message_header {
  std::uint32_t has_overflow = 0;  ///< not 0: the sender has found a value that is not finite in this step
  std::uint32_t unused = 0;
  std::uint64_t fingerprint = 0;  ///< of the sender's step; 0 in the messages of signals, which are not compared
};
static_assert(sizeof(message_header) == wire_layout::header_bytes);

SLAMB_HOST_DEVICE inline message_header* header_of(std::byte* message) noexcept {
  return reinterpret_cast<message_header*>(message);
}
/// Scale number `index` of a message, which is a float.
SLAMB_HOST_DEVICE inline float* scale_in(std::byte* message, std::uint64_t index) noexcept {
  return reinterpret_cast<float*>(message + wire_layout::header_bytes) + index;
}

/// Writes the header of each message, without an overflow, and with the fingerprint of this step. A first scale becomes 0, for
/// messages without elements; codes of a format without scales are written there later.
struct start_messages {
  const step_record* record = nullptr;  ///< null: messages have no fingerprint
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    for (std::uint64_t i = thread; i < count; i += threads) {
      std::byte* const message = messages + i * message_bytes;
      *header_of(message) = {0, 0, record == nullptr ? 0 : fingerprint_of(*record)};
      *scale_in(message, 0) = 0.0F;
    }
  }
};

/// Raises the overflow flag, if this rank has found a value that is not finite.
struct write_overflow_flags {
  const step_record* record = nullptr;  ///< null: there is no flag
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    if (record == nullptr || record->not_finite == 0) return;
    for (std::uint64_t i = thread; i < count; i += threads) header_of(messages + i * message_bytes)->has_overflow = 1;
  }
};

/// Skips the step if any rank's message has the overflow flag, or a first scale that is not finite, as of a mean of huge values.
struct read_overflow_flags {
  step_record* record = nullptr;
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;
  bool looks_at_scale = false;  ///< scales are floats, and were not checked when they were made

  /// Reads messages `thread`, `thread` + `threads`, ….
  SLAMB_HOST_DEVICE bool has_overflow(unsigned thread = 0, unsigned threads = 1) const {
    bool found = false;  // without leaving the loop, so that a thread waits once for all that it reads
    for (std::uint64_t i = thread; i < count; i += threads) {
      found |= header_of(messages + i * message_bytes)->has_overflow != 0;
      if (looks_at_scale) found |= (as_word(*scale_in(messages + i * message_bytes, 0)) & 0x7F800000U) == 0x7F800000U;
    }
    return found;
  }
  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    if (has_overflow(thread, threads)) record->skip = 1;
  }
};

/// Skips the step if any rank's fingerprint differs from this rank's, or if this node has diverged. Does nothing if the step is
/// skipped for an overflow, which all ranks know.
struct compare_fingerprints {
  step_record* record = nullptr;
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;

  SLAMB_HOST_DEVICE void operator()(unsigned thread = 0, unsigned threads = 1) const {
    if (record->skip != 0 && !record->agreement.has_diverged()) return;
    const std::uint64_t own = fingerprint_of(*record);
    bool differs = false;
    for (std::uint64_t i = thread; i < count; i += threads)
      differs |= header_of(messages + i * message_bytes)->fingerprint != own;
    if (differs || record->agreement.node_diverged != 0) mark_diverged(*record);
  }
};

/// Hashes some values that must be equal on all ranks: the first scales of up to four messages, and the first codes of the first
/// message.
struct note_received {
  step_record* record = nullptr;
  std::byte* messages = nullptr;
  std::uint64_t message_bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t codes_at = 0;
  bool has_scales = false;
  bool has_word_of_codes = false;  ///< the first message has 32 bits of codes, and not of padding

  SLAMB_HOST_DEVICE void operator()() const {
    std::uint64_t received = has_word_of_codes ? as_word(*reinterpret_cast<const float*>(messages + codes_at)) : 0;
    for (std::uint64_t i = 0; i < 4 && i < count; ++i) {
      std::byte* const message = messages + i * (count - 1) / 3 * message_bytes;
      received = hash_with(received, has_scales ? as_word(*scale_in(message, 0)) : 0U);
    }
    record->agreement.received_hash = received;
  }
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/pass/messages.ipp"
#endif
