// The agreement of ranks: a fingerprint, by which ranks notice that they have diverged. It is a hash of everything that must be equal
// on all of them. It is kept beside the state of a step and travels with each payload. The functions of a step call
// `agreement_record` in four places: they begin its hash, send it, add received values, and end it.
//
// docs/design.md, "Ranks that diverge".
#pragma once

#include <cstddef>
#include <cstdint>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"

namespace slamb::detail {

/// A hash, and the step that it belongs to.
struct hash_of_step {
  std::uint64_t word = 0;
  std::uint64_t step = 0;  ///< 0: there is no hash

  SLAMB_HOST_DEVICE bool is_of(std::uint64_t t) const { return step != 0 && step == t; }
};

/// Values whose hashes are part of the fingerprint in some steps.
enum class hashed_values : std::uint8_t {
  parameters,          ///< before the step, or a word in their place
  parameters_in_node,  ///< likewise, in a node whose parameters may differ from other nodes'
  selection,           ///< the elements that the compressor selects in the step
  payload              ///< received in the step; part of the next step's fingerprint
};

/// What a rank remembers in order to compare itself with the others. In the backend's memory, and trivially copyable. `taken` is
/// the number of steps taken, so the step that has begun is `taken` + 1.
struct agreement_record {
  std::uint64_t run_hash = 0;              ///< of all steps so far: their learning rates and received values
  std::uint64_t step_hash = 0;             ///< the run's, with what this step begins with
  std::uint64_t received_hash = 0;         ///< of some values received in this step
  std::uint64_t runtime_options_hash = 0;  ///< of the tensors without a gradient and of changed options; 0: of neither
  hash_of_step kept[4];                    ///< [hashed_values]
  std::uint64_t diverged_fingerprint = 0;  ///< the fingerprint of the step in which ranks diverged
  std::uint32_t diverged = 0;  ///< not 0: ranks have diverged, and all steps are skipped until they have been compared
  std::uint32_t saved_diverged = 0;  ///< a copy of `diverged`, which the host reads later
  std::uint32_t node_diverged =
      0;  ///< not 0: the ranks of this node have diverged; its number + 1, for the other nodes

  SLAMB_HOST_DEVICE const hash_of_step& of(hashed_values values) const { return kept[static_cast<unsigned>(values)]; }
  SLAMB_HOST_DEVICE bool has_diverged() const { return diverged != 0 || node_diverged != 0; }

  /// Begins a step.
  SLAMB_HOST_DEVICE void begin(std::uint64_t taken) {
    begin_following_exchange(taken);
    if (runtime_options_hash != 0) add(runtime_options_hash);
  }
  /// Begins an exchange that follows a step.
  SLAMB_HOST_DEVICE void begin_following_exchange(std::uint64_t taken) {
    received_hash = 0;
    step_hash = hash_with(run_hash, taken);
  }
  /// Adds a word with which the step begins.
  SLAMB_HOST_DEVICE void add(std::uint64_t word) { step_hash = hash_with(step_hash, word); }
  /// Keeps a hash of values for the fingerprint of step `taken` + 1, or of the one after it.
  SLAMB_HOST_DEVICE void keep(hashed_values values, std::uint64_t word, std::uint64_t taken) {
    if (values == hashed_values::selection && diverged != 0)
      return;  // that of the diverged step is still to be compared
    at(values) = {word, taken + 1};
  }

  /// The fingerprint to be sent: a hash of everything that must be equal on all ranks. A node whose ranks have diverged has
  /// another fingerprint than the other nodes.
  /// @param in_node  true: also of values that must be equal only within a node
  SLAMB_HOST_DEVICE std::uint64_t fingerprint(std::uint64_t taken, bool in_node = false) const {
    const hash_of_step& parameters = of(hashed_values::parameters);
    const hash_of_step& selection = of(hashed_values::selection);
    const hash_of_step& payload = of(hashed_values::payload);
    const hash_of_step& parameters_in_node = of(hashed_values::parameters_in_node);
    std::uint64_t all = hash_with(step_hash, parameters.is_of(taken + 1) ? parameters.word : 0);
    if (selection.is_of(taken + 1)) all = hash_with(all, selection.word);
    if (payload.is_of(taken)) all = hash_with(all, payload.word);
    if (in_node && parameters_in_node.is_of(taken + 1)) all = hash_with(all, parameters_in_node.word);
    return node_diverged == 0 ? all : hash_with(all, node_diverged);
  }

  /// Adds a received word, which must be equal on all ranks.
  SLAMB_HOST_DEVICE void receive(std::uint64_t word) { received_hash = hash_with(received_hash, word); }
  /// Another fingerprint than this rank's has arrived.
  SLAMB_HOST_DEVICE void mark_diverged(std::uint64_t taken) {
    if (diverged == 0) diverged_fingerprint = fingerprint(taken);
    diverged = 1;
  }

  /// Ends a step that is taken.
  SLAMB_HOST_DEVICE void end() { run_hash = hash_with(step_hash, received_hash); }
  /// Ends an exchange that followed a step, and was not skipped.
  SLAMB_HOST_DEVICE void end_following_exchange() { run_hash = hash_with(run_hash, received_hash); }

  /// Ranks may take steps again.
  /// @param is_other_run  a state has been restored, and the last payload was received in another run
  SLAMB_HOST_DEVICE void forget_difference(bool is_other_run) {
    diverged = node_diverged = 0;
    at(hashed_values::parameters).step = 0;
    at(hashed_values::parameters_in_node).step = 0;
    at(hashed_values::selection).step = 0;
    if (is_other_run) at(hashed_values::payload).step = 0;
  }

 private:
  SLAMB_HOST_DEVICE hash_of_step& at(hashed_values values) { return kept[static_cast<unsigned>(values)]; }
};

/// The header of a payload that ranks sum: floats in front of it, so many that the payload stays aligned to 64 bytes.
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

}  // namespace slamb::detail
