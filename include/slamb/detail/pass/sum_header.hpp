// The header of a payload that ranks sum: it carries the overflow flag and the ranks' fingerprints.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/step_state.hpp"

namespace slamb::detail {

/// The header of a payload: floats in front of it, so many that the payload stays aligned to 64 bytes.
///
///     [0]        0; NaN: this rank has found a value that is not finite in this step
///     [1 … 8]    the fingerprint, a byte in each; NaN in [1]: ranks of this node have diverged
///     [9]        0; NaN: the framework of this rank has found an overflow
///     [10 … 15]  0
///
/// A sum of bytes is exact in any order, for up to 2^16 ranks. If all ranks have the same fingerprint, each sum is N times the
/// rank's own byte. A rank overlooks a difference with a probability of about 2^-64: if its own bytes are the means.
struct sum_header {
  static constexpr std::size_t floats = 16;
  static constexpr std::size_t overflow = 0;
  static constexpr std::size_t first_byte = 1;
  static constexpr std::size_t bytes = 8;
  static constexpr std::size_t found_inf = first_byte + bytes;
  static constexpr int most_ranks = 1 << 16;  ///< among more, fingerprints are not compared

  SLAMB_HOST_DEVICE static float byte_of(std::uint64_t word, std::size_t i) {
    return static_cast<float>(static_cast<std::uint32_t>(word >> (8 * i)) & 0xFFU);
  }
};

/// Writes the header of this rank.
struct write_sum_header {
  const step_record* record;
  float* header;               ///< [sum_header::floats]
  bool in_node = false;        ///< for a sum within a node
  bool flags_overflow = true;  ///< raises the flag of overflows that the step has found

  SLAMB_HOST_DEVICE void operator()() const {
    const float nan = as_real(std::uint32_t{0x7FC00000U});
    const std::uint64_t fingerprint = fingerprint_of(*record, in_node);
    for (std::size_t i = 0; i < sum_header::floats; ++i) header[i] = 0.0F;
    for (std::size_t i = 0; i < sum_header::bytes; ++i)
      header[sum_header::first_byte + i] = sum_header::byte_of(fingerprint, i);
    if (flags_overflow && record->not_finite != 0) header[sum_header::overflow] = nan;
    if (record->found_inf != 0) header[sum_header::found_inf] = nan;
    if (record->node_diverged != 0) header[sum_header::first_byte] = nan;
  }
};

/// The content of the summed headers, for one rank.
struct sum_header_findings {
  bool overflowed = false;     ///< a rank has raised the overflow flag, or the next
  bool found_inf = false;      ///< the framework of a rank has found an overflow
  bool node_diverged = false;  ///< the ranks of a node have diverged
  bool differs = false;        ///< ranks have different fingerprints

  SLAMB_HOST_DEVICE sum_header_findings(std::uint64_t fingerprint, const float* header, int ranks) {
    const float first = header[sum_header::first_byte];
    found_inf = !(header[sum_header::found_inf] == header[sum_header::found_inf]);
    overflowed = found_inf || !(header[sum_header::overflow] == header[sum_header::overflow]);
    node_diverged = !(first == first);
    if (ranks > sum_header::most_ranks) return;
    for (std::size_t i = 0; i < sum_header::bytes; ++i)
      differs |=
          !(header[sum_header::first_byte + i] == static_cast<float>(ranks) * sum_header::byte_of(fingerprint, i));
  }
};

/// Reads the summed headers: skips the step if any rank has overflowed, or else if ranks have diverged. A diverged node counts
/// before an overflow, because its ranks may not agree on the overflow. Also hashes some values of the payload.
struct read_sum_header {
  step_record* record;
  const float* header;  ///< [sum_header::floats], and the payload behind it
  int ranks;
  std::uint64_t payload = 0;  ///< floats behind the header, summed by one or several calls

  static constexpr std::uint64_t noted = 16;

  SLAMB_HOST_DEVICE void operator()() const {
    const sum_header_findings found(fingerprint_of(*record), header, ranks);
    if (found.node_diverged || (found.differs && !found.overflowed))
      note_difference(*record);
    else if (found.overflowed)
      record->skip = 1;
    if (payload > 0) note_some(header + sum_header::floats);
  }

 private:
  // Hashes the first value, the last, and some in between, which must be equal on all ranks. All are read before one is used, so
  // that a device waits once.
  SLAMB_HOST_DEVICE void note_some(const float* received) const {
    std::uint32_t words[noted];
    for (std::uint64_t i = 0; i < noted; ++i) words[i] = finite_word(received[i * (payload - 1) / (noted - 1)]);
    for (const std::uint32_t word : words) record->received = hash_with(record->received, word);
  }
  // Ranks may receive different bits of NaN.
  SLAMB_HOST_DEVICE static std::uint32_t finite_word(float x) { return x == x ? as_word(x) : 0x7FC00000U; }
};

/// Reads the summed headers of a node, which other nodes have not seen yet.
struct read_local_sum_header {
  step_record* record;
  const float* header;
  int ranks;  ///< of the node
  int node;
  bool is_only_node;  ///< there is no other node to tell

  SLAMB_HOST_DEVICE void operator()() const {
    const sum_header_findings found(fingerprint_of(*record, true), header, ranks);
    if (found.overflowed) record->not_finite = 1;
    if (found.found_inf) record->found_inf = 1;
    if (found.overflowed || found.node_diverged || !found.differs) return;
    if (is_only_node)
      note_difference(*record);
    else
      record->node_diverged = static_cast<std::uint32_t>(node) + 1;
  }
};

}  // namespace slamb::detail
