// The exchange of a payload that ranks can add: one all_reduce, which also carries the news of an overflow and the fingerprint of
// what all ranks must have alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/core/config.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/step_state.hpp"

namespace slamb::detail {

/// The floats in front of a payload. Their number keeps the payload aligned as its memory is, to 64 bytes.
///
///     [0]        0; NaN: this rank has seen in this step what is not finite
///     [1 … 8]    the fingerprint, a byte in each; NaN in [1]: ranks of this node have parted
///     [9 … 15]   0
///
/// A sum of bytes is exact, in whatever order ranks are added, for up to 2^16 ranks. If all ranks have the same fingerprint, each
/// sum is N times its own byte. If they have not, a rank overlooks it with a probability of about 2^-64: where its own bytes all
/// are the means.
struct sum_header {
  static constexpr std::size_t floats = 16;
  static constexpr std::size_t news = 0;
  static constexpr std::size_t first_byte = 1;
  static constexpr std::size_t bytes = 8;
  static constexpr int most_ranks = 1 << 16;  ///< among more, fingerprints are not compared

  SLAMB_HOST_DEVICE static float byte_of(std::uint64_t word, std::size_t i) {
    return static_cast<float>(static_cast<std::uint32_t>(word >> (8 * i)) & 0xFFU);
  }
};

/// Writes the header of this rank.
struct write_sum_header {
  const step_record* record;
  float* header;         ///< [sum_header::floats]
  bool tells;            ///< of what is not finite
  bool in_node = false;  ///< for a sum within a node

  SLAMB_HOST_DEVICE void operator()() const {
    const float nan = as_real(std::uint32_t{0x7FC00000U});
    const std::uint64_t fingerprint = fingerprint_of(*record, in_node);
    for (std::size_t i = 0; i < sum_header::floats; ++i) header[i] = 0.0F;
    for (std::size_t i = 0; i < sum_header::bytes; ++i)
      header[sum_header::first_byte + i] = sum_header::byte_of(fingerprint, i);
    if (tells && record->not_finite != 0) header[sum_header::news] = nan;
    if (record->node_diverged != 0) header[sum_header::first_byte] = nan;
  }
};

/// What the sum of the headers of `ranks` ranks says to one of them.
struct sum_header_findings {
  bool overflowed = false;     ///< a rank has seen what is not finite
  bool node_diverged = false;  ///< the ranks of a node have parted
  bool differs = false;        ///< ranks have other fingerprints

  SLAMB_HOST_DEVICE sum_header_findings(std::uint64_t fingerprint, const float* header, int ranks) {
    const float first = header[sum_header::first_byte];
    overflowed = !(header[sum_header::news] == header[sum_header::news]);
    node_diverged = !(first == first);
    if (ranks > sum_header::most_ranks) return;
    for (std::size_t i = 0; i < sum_header::bytes; ++i)
      differs |=
          !(header[sum_header::first_byte + i] == static_cast<float>(ranks) * sum_header::byte_of(fingerprint, i));
  }
};

/// Reads the sum of all ranks' headers: refuses the step if any rank has seen what is not finite, or else if ranks have parted. A
/// node that has parted is told before an overflow, for its ranks do not know the same. Notes some of the payload.
struct read_sum_header {
  step_record* record;
  const float* header;  ///< [sum_header::floats], and the payload behind it
  int ranks;
  std::uint64_t payload = 0;  ///< floats behind the header that have been summed, maybe by several sums

  static constexpr std::uint64_t noted = 16;

  SLAMB_HOST_DEVICE void operator()() const {
    const sum_header_findings told(fingerprint_of(*record), header, ranks);
    if (told.node_diverged || (told.differs && !told.overflowed))
      note_difference(*record);
    else if (told.overflowed)
      record->skip = 1;
    if (payload > 0) note_some(header + sum_header::floats);
  }

 private:
  // Of what all have received alike: the first, the last, and some in between. All are read before one is used, so that a device
  // waits for them once.
  SLAMB_HOST_DEVICE void note_some(const float* received) const {
    std::uint32_t words[noted];
    for (std::uint64_t i = 0; i < noted; ++i) words[i] = finite_word(received[i * (payload - 1) / (noted - 1)]);
    for (const std::uint32_t word : words) record->received = hash_with(record->received, word);
  }
  // Ranks may receive different bits of NaN.
  SLAMB_HOST_DEVICE static std::uint32_t finite_word(float x) { return x == x ? as_word(x) : 0x7FC00000U; }
};

/// The same of a sum within a node, of which other nodes know nothing yet.
struct read_local_sum_header {
  step_record* record;
  const float* header;
  int ranks;  ///< of the node
  int node;
  bool is_only_node;  ///< nobody else has to be told

  SLAMB_HOST_DEVICE void operator()() const {
    const sum_header_findings told(fingerprint_of(*record, true), header, ranks);
    if (told.overflowed) record->not_finite = 1;
    if (told.overflowed || told.node_diverged || !told.differs) return;
    if (is_only_node)
      note_difference(*record);
    else
      record->node_diverged = static_cast<std::uint32_t>(node) + 1;
  }
};

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
template <class Context>
void all_reduce_payload(std::span<float> payload, std::uint64_t whole, Context& context, bool tells = true) {
  if (context.ranks.size() == 1) {
    if (tells) context.executor.invoke(skip_if_not_finite{context.record()});
    return;
  }
  float* const header = payload.data() - sum_header::floats;
  context.executor.invoke(write_sum_header{context.record(), header, tells});
  context.ranks.all_reduce_sum_with_header(std::span<float>(header, sum_header::floats + payload.size()),
                                           sum_header::floats, context.executor.stream());
  context.executor.invoke(read_sum_header{context.record(), header, context.ranks.size(), whole});
}

}  // namespace slamb::detail
