// The ranks that hold the shards of one model: sums over whole tensors, and the steps that all of them skip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slamb/core/config.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/layout.hpp"
#include "slamb/detail/pass/step_calls.hpp"

namespace slamb::detail {

class optimizer_core;

/// Sums over parts of tensors, which the ranks of a group have. Each is one all_gather of a few doubles, which every rank adds in the
/// order of the ranks: so the sums have the same bits on all of them.
class sums_of_parts {
 public:
  enum class among { shards, ranks };  ///< the ranks of a shard group, or those that exchange

  /// Plans memory for up to `results` sums and maxima of each tensor.
  void plan(optimizer_core& core, among group, int size, std::size_t tensors, int results);

  int size() const noexcept { return size_; }
  /// [tensors][results] this rank's results of each tensor, in the backend's memory.
  double* own(const optimizer_core& core) const noexcept;
  /// [ranks][tensors][results] those of all ranks, after `gather`.
  double* all(const optimizer_core& core) const noexcept;

  /// Gathers `results` of each tensor.
  void gather(optimizer_core& core, int results) const;
  /// Adds up a value of each rank, in the backend's memory.
  void add(optimizer_core& core, double* value) const;
  /// Adds up values in host memory, at most those of one plan. Waits.
  void add_on_host(optimizer_core& core, std::span<double> values) const;

 private:
  void gather(optimizer_core& core, std::span<const double> mine, std::span<double> all) const;

  among group_ = among::shards;
  int size_ = 1;
  std::size_t tensors_ = 0;
  region<double> own_;
  region<double> all_;
};

/// The calls in which the ranks of a shard group tell each other what must be equal.
enum class shard_call : std::uint64_t { step, local_step, following_exchange, first_comparison };

/// The shard group of an optimizer. Without one, or with one shard, nothing exists and no function does anything.
///
/// Each of its sums is one all_gather within the group, of a few doubles for each tensor, which every rank adds in the order of the
/// shards: so the sums have the same bits on all of them.
class shard_group {
 public:
  /// Finds out what the whole tensors are, and tells the layout. Collective over all ranks of all groups.
  /// @throws rank_mismatch_error, on every rank, if groups differ in size, or ranks in the number of tensors; if a number of a shard
  ///         is out of range, or copies differ in size
  void find(optimizer_core& core);

  /// Plans memory for up to `results` sums and maxima of each tensor.
  void plan(optimizer_core& core, int results);
  /// Copies the tables, once memory is allocated.
  void start(const optimizer_core& core) const;

  bool exists() const noexcept { return size_ > 1; }
  int size() const noexcept { return size_; }
  /// True if some ranks have the same elements of a tensor.
  bool has_copies() const noexcept { return has_copies_; }
  /// The first rank of the group that has the same elements of a tensor as `rank`.
  std::size_t holder_of(std::size_t rank, std::size_t tensor) const noexcept {
    return holders_[rank * tensors_ + tensor];
  }

  /// A part of a whole tensor, and the first rank of the group that has it.
  struct piece {
    std::size_t rank = 0;
    std::uint64_t first = 0;  ///< element of the whole tensor
    std::uint64_t size = 0;
  };
  /// The parts of a tensor, in order.
  std::span<const piece> pieces_of(std::size_t tensor) const noexcept { return pieces_[tensor]; }
  /// This rank's part of a tensor.
  const piece& own_piece(std::size_t tensor) const noexcept { return own_pieces_[tensor]; }

  const sums_of_parts& sums() const noexcept { return sums_; }

  /// Adds up a value of each rank, in the backend's memory. Takes a collective.
  void add(optimizer_core& core, double* value) const {
    if (exists()) sums_.add(core, value);
  }
  /// Adds up some values of each tensor, or fewer, in host memory. Takes a collective, and waits.
  void add_on_host(optimizer_core& core, std::span<double> values) const {
    if (exists()) sums_.add_on_host(core, values);
  }

  /// All ranks skip the step if one of them must, or if they have diverged. To be called when the exchange of a step is done, and
  /// before it changes anything. In a local step, which has no exchange, the other shard groups learn of a difference in the next one.
  void agree(optimizer_core& core, shard_call call = shard_call::step) const;

  /// Tells which tensors have a gradient, among those of which not all ranks have elements. The hash of the step has the others.
  void tell_gradients(const optimizer_core& core) const;

  /// Compares the copies of tensors that several ranks have. Ranks that differ have then diverged.
  /// @param sums  [tiles] the fingerprints of the parameters
  void compare(optimizer_core& core, std::span<const double> sums) const;

  /// Compares the gradients of these copies. Ranks whose gradients differ have then diverged, which the next step tells.
  void compare_gradients(optimizer_core& core) const;

  /// Gives copies the parameters of the first rank that has them, after a step. Their gradients may differ by rounding. Ranks that
  /// exchange may have summed in another order than those of another copy, and codes depend on the other tensors of a message.
  void align_after_step(optimizer_core& core);
  /// The same in a call outside of a step.
  void align_copies(optimizer_core& core);
  /// Parameters are updated, and copies may differ until the next alignment, even if an exchange fails that follows the update.
  void begin_update() noexcept { is_updating_ = true; }
  /// Copies are equal again.
  void end_update() noexcept { is_updating_ = false; }
  /// True if there are copies, and they must be equal.
  bool has_equal_copies() const noexcept { return has_copies_ && !is_updating_; }
  /// Points the tables of copies at the tensors' memory, when it has changed.
  void point_at_tensors(const optimizer_core& core) const;

  /// Tensors of which some ranks have elements, and others none.
  std::span<const std::size_t> partly_held() const noexcept { return partly_; }

 private:
  // @param skip  not 0: copies stay as they are; null: 0
  void align(optimizer_core& core, const std::uint32_t* skip);
  static std::vector<tile> tiles_of_copies(const optimizer_core& core);
  std::size_t words() const noexcept { return (partly_.size() + 63) / 64; }

  int size_ = 1;
  std::size_t tensors_ = 0;
  bool has_copies_ = false;
  bool is_updating_ = false;
  std::vector<std::uint32_t> holders_;      // [shards][tensors]
  std::vector<std::vector<piece>> pieces_;  // [tensors]
  std::vector<piece> own_pieces_;           // [tensors]
  sums_of_parts sums_;
  std::vector<std::size_t> partly_;    // tensors of which not all ranks have elements
  region<std::uint32_t> own_partly_;   // the same
  region<std::uint64_t> own_message_;  // a shard_message, and its words
  region<std::uint64_t> messages_;     // [shards] of them
  region<segment> copied_segments_;    // [tensors] with places in the buffer of copies
  region<tile> copied_tiles_;          // of copied tensors: first those that this rank counts
  region<float> copies_;               // of all copied tensors, whole
  std::size_t counted_tiles_ = 0;
  region<std::uint32_t> own_holders_;  // [tensors]
};

}  // namespace slamb::detail
