// When ranks compare themselves, and the error that names their difference. Before the first step they try the collectives that
// the optimizer will call, and compare options. In steps they compare fingerprints (detail/ranks/agreement.hpp), by a schedule that
// is the same on all ranks. Spans of a Communicator are in the backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/detail/kernel/run_selected.hpp"
#include "slamb/detail/pass/arena.hpp"
#include "slamb/detail/pass/machine.hpp"
#include "slamb/detail/pass/model_passes.hpp"
#include "slamb/detail/pass/sparse_pass.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

class optimizer_core;
struct probe;

// ------------------------------------------------------------------------------------------------------ before the first step

/// Ranks of a node compare the number of their node and the number of nodes. Then nodes compare their numbers of ranks. Every
/// rank makes both comparisons, even if the first has failed, because other ranks wait for the second.
///
/// @throws rank_mismatch_error, on every rank
void require_equal_nodes(const summing_ranks& in_node, const summing_ranks& inter_node);

/// The same for shard groups: the ranks of a group compare its number and the number of groups, and ranks that exchange compare the
/// number of their shard and the number of shards. Then the ranks of a group tell each other of differences.
/// @throws rank_mismatch_error, on every rank
void require_equal_shard_groups(const summing_ranks& in_shards, const summing_ranks& between);

/// Requires that each rank has the same parameters as the first rank of its node. Nodes may differ.
///
/// @param of_tensor  [tensors] a hash of this rank's parameters
/// @throws rank_mismatch_error, on every rank of every node
void require_equal_in_nodes(std::span<const std::uint64_t> of_tensor, const summing_ranks& in_node,
                            const summing_ranks& all);

/// @throws std::invalid_argument if rank and size are out of range
void require_rank(int rank, int size);

/// The collectives of an optimizer's ranks, on values in host memory: they are copied to the backend's memory and back.
class host_ranks {
 public:
  host_ranks(collectives& ranks, const machine& on) noexcept : ranks_(ranks), on_(on) {}

  /// The ranks that all_reduce_sum joins.
  summing_ranks inter_node() const;
  /// The ranks that all_reduce_in_node joins.
  summing_ranks in_node() const;
  /// The ranks of the shard group.
  summing_ranks in_shards() const;
  /// All ranks; with nodes or shard groups, all ranks of all of them.
  summing_ranks all() const;

  /// Tries the sums over ranks.
  /// @throws communicator_error, on every rank, if a result is not the sum
  void require_sums() const;

  /// Tries the collectives of bytes. A single rank, or node, sends nothing.
  /// @throws communicator_error, on every rank, if a result has wrong bytes
  void require_bytes(byte_collectives called) const;

  /// Tries all_gather alone.
  /// @throws as `require_bytes`
  void require_gather() const;

 private:
  rank_id id() const;
  // Copies `values` to the backend's memory, calls call(there), and copies the result back.
  void in_backend(std::span<std::byte> values, function_ref<void(std::span<std::byte>)> call) const;
  // The same for floats. The result refers to this object's ranks and machine.
  std::function<void(std::span<float>)> sum_by(void (*sum)(collectives&, std::span<float>, any_stream)) const;
  // Makes the call of a probe, whose memory is the backend's.
  void make(const probe& p, std::span<std::byte> memory) const;
  void require_right_results(const std::vector<probe>& calls) const;

  collectives& ranks_;
  const machine& on_;
};

/// Tries the collectives and compares options. Sums come first, because options are compared by them; other collectives come
/// last, once it is certain that all ranks call the same. With nodes, for all ranks of all nodes.
///
/// @throws rank_mismatch_error, on every rank, if ranks differ in options or tensors; communicator_error, on every rank, if a
///         collective gives other values than it should, or fails
void require_consistent_ranks(const consistency_check& fields, collectives& ranks, const machine& on,
                              byte_collectives called = {});

// ------------------------------------------------------------------------------------------------------------------ in steps

/// The calls in which ranks compare themselves.
enum class comparing_call : std::uint8_t { step, synchronize_parameters, with_averaged_parameters, compare_ranks };

/// Compares one rank's optimizer with the other ranks'. In the first step, and in the first after the state or the parameters
/// have been replaced, ranks compare by one small collective, because they may be at different steps with different collectives.
/// Later the fingerprints travel with the payloads.
///
/// It counts ended steps, taken or skipped. All ranks end the same steps, so all compare in the same steps.
class rank_agreement {
 public:
  /// Returns true if all ranks must have the same parameters now. Called only if it is needed.
  using equality = std::function<bool()>;

  /// @param every  steps between comparisons of parameters, masks and received payloads; 0: steps compare none of these
  explicit rank_agreement(std::uint64_t every) noexcept
      : every_(every), next_(every), next_in_node_(every), next_of_copies_(every) {}

  void plan(optimizer_core& core);

  /// Compares before a step begins, once its learning rates are set.
  /// @throws rank_mismatch_error, on every rank
  void compare_before_step(optimizer_core& core, const equality& replicas_are_equal);

  /// Sets the anchor, which is equal on all ranks when parameters are not.
  /// @param anchor  [state elements] in the backend's memory; null: there is no anchor
  void set_anchor(float* anchor) noexcept { anchor_ = anchor; }
  /// Compares the anchor, if there is one, before a step with an exchange begins. Other steps send nothing.
  void compare_anchor(const optimizer_core& core);

  /// Compares in a call between steps, which all ranks make. Waits.
  /// @throws rank_mismatch_error, on every rank
  void compare_in_call(optimizer_core& core, comparing_call call, const equality& replicas_are_equal);

  /// Compares the root of broadcast_parameters().
  /// @throws rank_mismatch_error, on every rank, if ranks name different roots
  void require_same_root(optimizer_core& core, int root) const;

  /// Adds a hash of the selection to the fingerprint of the step that has begun, if a comparison is due. Before anything is
  /// exchanged.
  /// @param tile_offsets  [tiles + 1] as payload_view::tile_offsets
  template <class Context, class Selection>
  void hash_selection(Context& context, const Selection& selection, std::span<std::uint64_t> tile_offsets) const {
    if (!compares_exchange_) return;
    auto model = context.view();
    model.skip = nullptr;
    context.launch(run_selected{fingerprint_of_unselected{}, model, payload_view{.tile_offsets = tile_offsets.data()},
                                selection, context.all_tiles(), context.sums()});
    keep_selection(context);
  }

  /// Adds a hash of the received payload, which must be equal on all ranks, to the fingerprint of the next step, if a comparison
  /// is due.
  void hash_payload(optimizer_core& core, const payload_view& payload) const;

  /// Compares the gradients of copies at the end of a step, if a comparison is due.
  void compare_gradients_of_copies(optimizer_core& core) const;

  /// Checks the result of comparisons after the exchange of a step.
  /// @throws rank_mismatch_error, on every rank, if ranks differ and this is known without waiting
  void require_not_diverged(optimizer_core& core, const equality& replicas_are_equal);

  /// @param is_captured  the step is part of a graph, and may be replayed any number of times
  void end_step(bool is_captured) noexcept;

  /// State or parameters may be replaced on some ranks: ranks compare before the next step.
  void compare_next() noexcept;
  /// All ranks have been given the same parameters since the last step.
  void set_equal_parameters() noexcept { has_equal_parameters_ = true; }

  /// Ranks may take steps again.
  /// @param is_other_run  a state has been restored
  void forget_difference(optimizer_core& core, bool is_other_run = false);

 private:
  static bool compares(const optimizer_core& core);
  bool is_due(std::uint64_t next) const noexcept { return every_ > 0 && ended_ + 1 >= next; }
  bool must_be_equal(const equality& replicas_are_equal) const {
    return begins_with_equal_parameters_ || replicas_are_equal();
  }
  bool has_been_seen(optimizer_core& core);
  void require_alike(optimizer_core& core, comparing_call call, const equality& replicas_are_equal);
  void hash_parameters(const optimizer_core& core, const model_pass& fingerprint,
                       hashed_values kept_as = hashed_values::parameters) const;
  static void compare_copies(optimizer_core& core);
  void keep_selection(const optimizer_core& core) const;
  [[noreturn]] void throw_difference(optimizer_core& core, comparing_call call, const equality& replicas_are_equal);

  std::uint64_t every_;
  std::uint64_t next_;               // the step, counted like `ended_`, from which on equal parameters are compared
  std::uint64_t next_in_node_;       // likewise for parameters that are equal within a node
  std::uint64_t next_of_copies_;     // likewise for copies of tensors in a shard group
  std::uint64_t ended_ = 0;          // steps since construction or `compare_next`
  std::uint64_t looked_before_ = 0;  // the step before which has_been_seen last asked
  float* anchor_ = nullptr;          // equal on all ranks when parameters are not; null: none
  bool is_first_ = true;
  bool is_in_first_ = false;                   // also if it has failed and is taken again
  bool compares_exchange_ = false;             // the selection and the received payload of the current step
  bool compares_gradients_ = false;            // of copies in the current step
  bool has_equal_parameters_ = false;          // all ranks have been given the same since the last step
  bool begins_with_equal_parameters_ = false;  // the current step began with them
  bool knows_all_steps_ = true;
  bool readback_pending_ = false;
  std::unique_ptr<late_flag> late_;
  region<float> header_;  // of a sum without a payload
};

}  // namespace slamb::detail
