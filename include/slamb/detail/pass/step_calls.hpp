// The functions that every optimizer invokes between passes, in the order of the backend's work, and the type that holds any of them.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/hash.hpp"
#include "slamb/core/real.hpp"
#include "slamb/detail/pass/one_of.hpp"
#include "slamb/detail/pass/step_state.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

/// Writes learning rates to the memory that passes read, and adds them to the hash of the step; for a launcher to invoke. A rate
/// from device memory that is negative or not finite, also after the factor of a tensor, has the effect of a gradient that is not
/// finite.
struct write_learning_rates {
  static constexpr std::size_t most_values = 16;

  step_record* record = nullptr;
  double* to = nullptr;          ///< [count]
  const double* from = nullptr;  ///< [count] in the backend's memory; null: `value`, already checked
  const double* largest_factor =
      nullptr;  ///< [count] largest learning_rate_factor of the group's tensors; negative: the group has none
  std::size_t count = 0;
  std::uint64_t hash = 0;  ///< of all rates that come from the host
  bool adds_hash = false;  ///< true for the one part of the rates that adds `hash`
  double value[most_values] = {};

  SLAMB_HOST_DEVICE static bool is_usable(double rate) { return rate >= 0.0 && rate <= 3.4028234663852886e38; }
  /// The bits of a rate by which ranks compare it: of the float that updates use.
  SLAMB_HOST_DEVICE static std::uint64_t word_of(double rate) { return as_word(static_cast<float>(rate) + 0.0F); }
  SLAMB_HOST_DEVICE void operator()() const {
    std::uint64_t found = hash_of_nothing;
    for (std::size_t i = 0; i < count; ++i) {
      const double rate = from == nullptr ? value[i] : from[i];
      if (from != nullptr && largest_factor[i] >= 0.0 && !is_usable(rate * largest_factor[i])) record->not_finite = 1;
      if (from != nullptr && largest_factor[i] >= 0.0) found = hash_with(found, word_of(rate));
      to[i] = rate;
    }
    if (from != nullptr || adds_hash) record->agreement.add(from == nullptr ? hash : found);
  }
};

/// Writes the pointers of a few tensors to their gradients, as a captured step does at each launch; for a launcher to invoke.
struct write_gradients {
  static constexpr std::uint32_t most_tensors = 18;

  segment* to = nullptr;  ///< [count]
  std::uint32_t count = 0;
  std::uint32_t has_gradient = 0;  ///< bit i: that of tensor i
  const void* gradient[most_tensors] = {};
  element_type type[most_tensors] = {};

  write_gradients() = default;
  /// @param tensors  [1 … most_tensors] in host memory
  write_gradients(segment* table, std::span<const segment> tensors) noexcept
      : to(table), count(static_cast<std::uint32_t>(tensors.size())) {
    for (std::uint32_t i = 0; i < count; ++i) {
      gradient[i] = tensors[i].gradient;
      type[i] = tensors[i].gradient_type;
      if (tensors[i].has_gradient) has_gradient |= 1U << i;
    }
  }

  SLAMB_HOST_DEVICE void operator()() const {
    for (std::uint32_t i = 0; i < count; ++i) {
      to[i].gradient = gradient[i];
      to[i].gradient_type = type[i];
      to[i].has_gradient = (has_gradient >> i & 1U) != 0;
    }
  }
};
static_assert(sizeof(write_gradients) <= sizeof(write_learning_rates), "slamb: all calls would take more room");

/// g ← g min(1, c/(‖g‖ + 1e-6)), the norm over all tensors; for a launcher to invoke.
struct clip_gradient_scale {
  step_record* record;
  float* scale;          ///< by which passes scale the gradient
  const double* square;  ///< sum of the squares of the gradient as it is read
  double c;

  SLAMB_HOST_DEVICE void operator()() const {
    record->norm = record->gradient_scale * sqrt(*square);
    const double factor = c / (record->norm + 1e-6);
    if (factor < 1.0) record->gradient_scale *= factor;
    *scale = static_cast<float>(record->gradient_scale);
  }
};

/// This rank's share of the mean of ‖g_i‖² over ranks.
struct write_square_share {
  const double* square;
  float* share;
  int ranks;

  SLAMB_HOST_DEVICE void operator()() const { *share = static_cast<float>(*square / static_cast<double>(ranks)); }
};

/// Reads the mean. If it is not finite, all ranks skip the step.
struct read_mean_square {
  step_record* record;
  const float* mean;
  double* square;

  SLAMB_HOST_DEVICE void operator()() const {
    *square = static_cast<double>(*mean);
    if (!(*mean <= 0x1.fffffep127F)) record->not_finite = 1;
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
    if (record->agreement.node_diverged != 0) header[sum_header::first_byte] = nan;
  }
};

/// Reads the summed headers: skips the step if any rank has overflowed, or else if ranks have diverged. A diverged node counts
/// before an overflow, because its ranks may not agree on the overflow. Also hashes some values of the payload.
struct read_sum_header {
  step_record* record;
  const float* header;  ///< [sum_header::floats], and the payload behind it
  int ranks;
  std::uint64_t payload = 0;  ///< floats behind the header, summed by one or several calls

  static constexpr std::uint64_t samples = 16;

  SLAMB_HOST_DEVICE void operator()() const {
    const sum_header_findings found(fingerprint_of(*record), header, ranks);
    if (found.node_diverged || (found.differs && !found.overflowed))
      mark_diverged(*record);
    else if (found.overflowed)
      record->skip = 1;
    if (payload > 0) receive_some(header + sum_header::floats);
  }

 private:
  // Hashes the first value, the last, and some in between, which must be equal on all ranks. All are read before one is used, so
  // that a device waits once.
  SLAMB_HOST_DEVICE void receive_some(const float* received) const {
    std::uint32_t words[samples];
    for (std::uint64_t i = 0; i < samples; ++i) words[i] = finite_word(received[i * (payload - 1) / (samples - 1)]);
    for (const std::uint32_t word : words) record->agreement.receive(word);
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
      mark_diverged(*record);
    else
      record->agreement.node_diverged = static_cast<std::uint32_t>(node) + 1;
  }
};

/// What a rank tells the others of its shard group in a step. Behind it are two bits for each tensor of which not all ranks have
/// elements, in words: first that this rank has a gradient of it, then that it has elements and no gradient.
struct shard_message {
  std::uint64_t fingerprint = 0;  ///< of what must be equal on all shards
  std::uint32_t skip = 0;         ///< not 0: the step must be skipped
  std::uint32_t diverged = 0;     ///< not 0: ranks have diverged
};

/// Writes the message of this rank.
struct write_shard_message {
  const step_record* record;
  shard_message* to;
  std::uint64_t call;  ///< a number of the call that ranks make

  SLAMB_HOST_DEVICE void operator()() const {
    *to = {hash_with(record->agreement.shard_hash, call), record->skip,
           record->agreement.has_diverged() ? std::uint32_t{1} : std::uint32_t{0}};
  }
};

/// Reads the messages of a shard group: all its ranks skip the step if one of them does, or if they have diverged. Without an exchange in
/// the step other groups could not skip it too, so it is taken if the ranks have diverged.
struct read_shard_messages {
  step_record* record;
  const std::uint64_t* all;  ///< [shards][message] messages, each with its words
  int shards;
  std::uint32_t words;          ///< of each kind of bits
  segment* segments;            ///< those of which this rank has no elements learn if others have a gradient
  const std::uint32_t* partly;  ///< [tensors of partly] the tensors of the bits
  std::uint32_t tensors_of_partly;
  std::uint32_t group;  ///< number of the shard group
  bool is_local;        ///< the step has no exchange

  static constexpr std::size_t words_of_message = sizeof(shard_message) / sizeof(std::uint64_t);

  SLAMB_HOST_DEVICE void operator()() const {
    const std::size_t stride = words_of_message + 2 * static_cast<std::size_t>(words);
    const auto& first = *reinterpret_cast<const shard_message*>(all);
    bool skip = false, diverged = false, differs = false;
    for (int i = 0; i < shards; ++i) {
      const auto& its = *reinterpret_cast<const shard_message*>(all + static_cast<std::size_t>(i) * stride);
      skip = skip || its.skip != 0;
      diverged = diverged || its.diverged != 0;
      differs = differs || its.fingerprint != first.fingerprint;
    }
    for (std::size_t word = 0; word < words; ++word) {
      std::uint64_t present = 0, absent = 0;
      for (int i = 0; i < shards; ++i) {
        const std::uint64_t* const bits = all + static_cast<std::size_t>(i) * stride + words_of_message + word;
        present |= bits[0];
        absent |= bits[words];
      }
      differs = differs || (present & absent) != 0;
      for (std::size_t i = 64 * word; i < 64 * word + 64 && i < tensors_of_partly; ++i)
        if (segment& s = segments[partly[i]]; s.size == 0) s.has_gradient = (present >> (i % 64) & 1U) != 0;
    }
    if (skip) record->skip = 1;
    if (!diverged && (!differs || skip)) return;
    if (is_local)
      record->agreement.mark_local_step(record->taken, group);
    else
      mark_diverged(*record);
  }
};

/// Adds up a value of each shard, in their order.
struct add_shards {
  const double* all;  ///< [shards]
  int shards;
  double* to;

  SLAMB_HOST_DEVICE void operator()() const {
    double sum = 0.0;
    for (int i = 0; i < shards; ++i) sum += all[i];
    *to = sum;
  }
};

/// Compares the hashes of this rank's tensors with those of the first rank that has the same elements.
struct compare_copies {
  step_record* record;
  const double* own;             ///< [tensors]
  const double* all;             ///< [shards][tensors]
  const std::uint32_t* holders;  ///< [tensors] the first rank of the shard group with the same elements
  std::size_t tensors;
  std::uint32_t group;  ///< the number of the shard group

  SLAMB_HOST_DEVICE void operator()() const {
    for (std::size_t i = 0; i < tensors; ++i)
      if (bits_of(own[i]) != bits_of(all[holders[i] * tensors + i])) record->agreement.node_diverged = group + 1;
  }
};

/// Compares the gradients of this rank's tensors with those of the first rank that has the same elements, up to rounding.
struct compare_gradients_of_copies {
  step_record* record;
  const double* own;             ///< [2][tensors] Σ ±g, Σ g²
  const double* all;             ///< [shards][2][tensors]
  const std::uint32_t* holders;  ///< [tensors] the first rank of the shard group with the same elements
  const segment* segments;       ///< [tensors]
  std::size_t tensors;
  std::uint32_t group;  ///< the number of the shard group

  SLAMB_HOST_DEVICE void operator()() const {
    constexpr double tolerance = 0.01;  // of ‖g‖; gradients of 16 bits are rounded by 0.002 |g|
    constexpr double rounding = 1e-6;   // of ‖g‖ over all tensors: a gradient may be the rounding of larger numbers
    double all_squares = 0.0;
    for (std::size_t i = 0; i < tensors; ++i)
      if (segments[i].has_gradient) all_squares += own[tensors + i];
    for (std::size_t i = 0; i < tensors; ++i) {
      if (!segments[i].has_gradient) continue;
      const double* const held = all + 2 * tensors * holders[i] + i;
      const double difference = own[i] - held[0];
      const double allowed =
          tolerance * tolerance * (own[tensors + i] + held[tensors]) + rounding * rounding * all_squares;
      if (!(difference * difference > allowed)) continue;
      record->agreement.node_diverged = group + 1;
      record->agreement.other_gradient = static_cast<std::uint32_t>(i) + 1;
      return;
    }
  }
};

/// One of these functions. A device compiles one kernel for all of them.
using step_call =
    one_of<begin_step, write_learning_rates, end_step, read_found_inf, keep_hash, save_diverged, forget_difference,
           write_sum_header, read_sum_header, read_local_sum_header, skip_if_not_finite, clip_gradient_scale,
           write_square_share, read_mean_square, begin_following_exchange, end_following_exchange, drop_local_gradient,
           write_gradients, write_shard_message, read_shard_messages, add_shards, compare_copies,
           compare_gradients_of_copies>;

/// A few of them, in order: itself a function that a launcher invokes.
struct step_calls {
  static constexpr int most = 4;

  int count = 0;
  step_call of[most];

  step_calls() = default;
  step_calls(std::initializer_list<step_call> calls) noexcept {
    for (const step_call& call : calls) add(call);
  }

  void add(const step_call& call) noexcept { of[count++] = call; }
  bool is_full() const noexcept { return count == most; }

  SLAMB_HOST_DEVICE void operator()() const {
    for (int i = 0; i < count; ++i) of[i].visit(run());
  }

 private:
  struct run {
    template <class Function>
    SLAMB_HOST_DEVICE void operator()(const Function& function) const {
      function();
    }
  };
};

}  // namespace slamb::detail
