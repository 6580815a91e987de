// The agreement of ranks: what they compare, and how.
//
// - During a training, by a fingerprint: a hash of everything that must be equal on all ranks. It is kept beside the state of a
//   step and travels with each payload, so ranks that have diverged notice it in the next exchange. The functions of a step call
//   `agreement_record` in four places: they begin its hash, send it, add received values, and end it.
// - Before the first step, and to name a difference, by tables of values, which one all_reduce_sum of floats brings to all ranks,
//   because every Communicator has that.
//
// optimizer/detail/rank_agreement.hpp decides when ranks compare. docs/design.md, "Ranks that diverge".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"

namespace slamb::detail {

// ---------------------------------------------------------------------------------------------------------- the fingerprint

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
  std::uint64_t shard_hash = 0;            ///< what this step begins with and is equal on all shards
  std::uint64_t shard_options_hash = 0;    ///< the same as runtime_options_hash, of what is equal on all shards
  hash_of_step kept[4];                    ///< [hashed_values]
  std::uint64_t diverged_fingerprint = 0;  ///< the fingerprint of the step in which ranks diverged
  std::uint64_t diverged_shard_hash = 0;   ///< likewise what was to be equal on all shards
  std::uint64_t local_step = 0;  ///< not 0: the local step in which the ranks of this shard group have diverged
  std::uint32_t diverged = 0;  ///< not 0: ranks have diverged, and all steps are skipped until they have been compared
  std::uint32_t saved_diverged = 0;  ///< a copy of `diverged`, which the host reads later
  std::uint32_t node_diverged =
      0;  ///< not 0: the ranks of this node, or shard group, have diverged; its number + 1, for the others

  /// Not 0: the number + 1 of a tensor of which this rank's gradient differs from that of a copy.
  std::uint32_t other_gradient = 0;

  SLAMB_HOST_DEVICE const hash_of_step& of(hashed_values values) const { return kept[static_cast<unsigned>(values)]; }
  SLAMB_HOST_DEVICE bool has_diverged() const { return diverged != 0 || node_diverged != 0; }

  /// Begins a step.
  SLAMB_HOST_DEVICE void begin(std::uint64_t taken) {
    begin_following_exchange(taken);
    if (runtime_options_hash != 0) step_hash = hash_with(step_hash, runtime_options_hash);
    if (shard_options_hash != 0) shard_hash = hash_with(shard_hash, shard_options_hash);
  }
  /// Begins an exchange that follows a step.
  SLAMB_HOST_DEVICE void begin_following_exchange(std::uint64_t taken) {
    received_hash = 0;
    step_hash = hash_with(run_hash, taken);
    shard_hash = hash_with(hash_of_nothing, taken);
  }
  /// Adds a word with which the step begins.
  SLAMB_HOST_DEVICE void add(std::uint64_t word) {
    step_hash = hash_with(step_hash, word);
    shard_hash = hash_with(shard_hash, word);
  }
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
    if (diverged == 0) {
      diverged_fingerprint = fingerprint(taken);
      if (local_step == 0) diverged_shard_hash = shard_hash;
    }
    diverged = 1;
  }
  /// The ranks of shard group `group` differ in a step without an exchange. It is taken, and the others are told in the next exchange.
  SLAMB_HOST_DEVICE void mark_local_step(std::uint64_t taken, std::uint32_t group) {
    if (local_step == 0) {
      local_step = taken + 1;
      diverged_shard_hash = shard_hash;
    }
    node_diverged = group + 1;
  }

  /// Ends a step that is taken.
  SLAMB_HOST_DEVICE void end() { run_hash = hash_with(step_hash, received_hash); }
  /// Ends an exchange that followed a step, and was not skipped.
  SLAMB_HOST_DEVICE void end_following_exchange() { run_hash = hash_with(run_hash, received_hash); }

  /// Ranks may take steps again.
  /// @param is_other_run  a state has been restored, and the last payload was received in another run
  SLAMB_HOST_DEVICE void forget_difference(bool is_other_run) {
    diverged = node_diverged = other_gradient = 0;
    local_step = 0;
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

// ---------------------------------------------------------------------------------------------------------------- tables

/// Ranks that sum values in host memory.
struct summing_ranks {
  int rank = 0;
  int size = 1;
  std::function<void(std::span<float> values)> all_reduce_sum;  ///< `values` [n] become their sum over ranks
  int shards = 1;  ///< rank i·shards + s has shard s of those that group i holds together

  /// "rank 3"; with shards, "rank 1, shard 1".
  std::string name_of(std::size_t one) const {
    const auto each = static_cast<std::size_t>(shards);
    return each == 1 ? "rank " + std::to_string(one)
                     : "rank " + std::to_string(one / each) + ", shard " + std::to_string(one % each);
  }
};

/// Synchronizes all ranks before they throw. A rank that throws may leave, while others still wait for its values.
void synchronize_before_throwing(const summing_ranks& ranks) noexcept;

/// The place of a rank among all ranks. With `in_nodes`, `rank` is the node and `local_rank` the place in the node.
struct rank_id {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  bool in_nodes = false;
  bool are_shards = false;  ///< the ranks are those of a shard group

  bool is_valid() const noexcept {
    return size >= 1 && rank >= 0 && rank < size && local_size >= 1 && local_rank >= 0 && local_rank < local_size;
  }
  /// The number of ranks of all nodes, and this rank's number among them.
  int everyone() const noexcept { return size * local_size; }
  int myself() const noexcept { return rank * local_size + local_rank; }
  /// "rank 1 of 4", "rank 0 of 2, local rank 3 of 4", "shard rank 1 of 2".
  std::string text() const { return text_of(rank, local_rank); }
  /// The place of rank `one_of_all`, counted over all nodes.
  std::string text(int one_of_all) const { return text_of(one_of_all / local_size, one_of_all % local_size); }

 private:
  std::string text_of(int at, int local) const;
};

/// A row of words of every rank. Each rank fills its own row of a table of zeros, with a few bits of a word in each float, and
/// the sum of all tables has all rows.
class rank_table {
 public:
  /// Collective, with rows of the same size on all ranks.
  ///
  /// @param own      [words] the row of this rank
  /// @param numbers  floats for each word
  /// @param bits     of a word in each float, at most 24, which a float holds exactly; higher bits of the word are not sent
  rank_table(const summing_ranks& ranks, std::span<const std::uint64_t> own, std::size_t numbers = 4,
             unsigned bits = 16);

  /// Word i of a rank; none if no ranks can have sent what came in its place.
  std::optional<std::uint64_t> word(std::size_t rank, std::size_t i) const;
  /// Word i of a rank. @throws communicator_error if there is none
  std::uint64_t sent_word(std::size_t rank, std::size_t i) const;

 private:
  std::size_t words_, numbers_;
  unsigned bits_;
  std::vector<float> sums_;  // [rank][word][number]
};

/// Compares numbers of all ranks, even if ranks disagree on the number of ranks: each rank counts itself at each hexadecimal digit
/// of each number, in a table whose size depends only on the count of numbers.
class counted_numbers {
 public:
  explicit counted_numbers(std::vector<std::uint64_t> numbers);

  std::span<float> table() noexcept { return table_; }  ///< to be summed over all ranks

  /// True if exactly `ranks` ranks have these numbers.
  bool are_of(int ranks) const;
  /// The index of the first number that differs between ranks; the count of numbers if none differs, or if the table cannot be
  /// a sum of such counts.
  std::size_t first_other() const;

 private:
  static constexpr std::size_t digits = 16, base = 16;

  std::span<const float> row(std::size_t i) const { return std::span(table_).subspan(i * base, base); }
  /// The ranks that have the same digit i, counted over all numbers.
  float same(std::size_t i) const { return row(i)[numbers_[i / digits] >> (4 * (i % digits)) & 15U]; }
  float total(std::size_t i) const { return std::accumulate(row(i).begin(), row(i).end(), 0.0F); }

  std::vector<std::uint64_t> numbers_;
  std::vector<float> table_;  // [number][digit][value]: ranks that have this digit
};

/// True if all ranks have the same number. Collective. @param ranks  may disagree on their number
bool all_equal(std::uint64_t number, const summing_ranks& ranks);

/// A list of named values that must be equal on all ranks.
class consistency_check {
 public:
  static constexpr const char* alike = "construct the optimizer with the same arguments on all ranks";

  /// The ranks that must have an equal value.
  enum class among : std::uint8_t { all_ranks, same_shard };

  /// @param kind  names the optimizer and its policies
  consistency_check(std::string_view kind, std::size_t tensors) : kind_(hash_of(kind)), tensors_(tensors) {}

  /// @param remedy  the end of the error: the remedy
  void add(std::string name, double value, const char* remedy = alike);
  void add_float(std::string name, float value, const char* remedy = alike);
  void add_word(std::string name, std::uint64_t word, const char* remedy = alike, among whom = among::all_ranks);
  /// Adds a hash, which the error does not print.
  void add_hash(std::string name, std::uint64_t word, const char* remedy = alike, among whom = among::all_ranks);

  /// Compares the list with the other ranks', by all_reduce_sum of floats.
  ///
  /// @throws rank_mismatch_error on every rank, with the first value that differs, on two ranks
  void require(const summing_ranks& ranks) const;

 private:
  struct field {
    enum kind { number, real, word, secret };  // printed as a double, as a float, as an integer, not at all

    std::string name;
    std::uint64_t bits = 0;
    kind shown_as = word;
    const char* remedy = alike;
    among whom = among::all_ranks;

    /// The rank with which rank `r` must agree.
    std::size_t first(std::size_t r, const summing_ranks& ranks) const {
      return whom == among::all_ranks ? 0 : r % static_cast<std::size_t>(ranks.shards);
    }
  };

  static rank_table table_of(const summing_ranks& ranks, std::span<const field> fields);

  static void compare(const summing_ranks& ranks, std::span<const field> fields);

  bool agree(const summing_ranks& ranks) const;

  [[noreturn]] static void reject(const field& f, const rank_table& table, std::size_t i, std::size_t r,
                                  const summing_ranks& ranks);

  std::uint64_t kind_;
  std::uint64_t tensors_;
  std::vector<field> fields_;
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/ranks/agreement.ipp"
#endif
