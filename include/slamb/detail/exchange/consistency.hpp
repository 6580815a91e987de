// The checks of ranks before an optimizer's first step: they try the collectives that it will call, and compare their options.
// The communicator's spans are in the backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/core/config.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/core/detail/function_ref.hpp"
#include "slamb/detail/pass/machine.hpp"
#include "slamb/detail/ranks/consistency_check.hpp"
#include "slamb/detail/ranks/rank_table.hpp"

namespace slamb::detail {

struct probe;

/// Ranks of a node compare the number of their node and the number of nodes. Then nodes compare their numbers of ranks. Every
/// rank makes both comparisons, even if the first has failed, because other ranks wait for the second.
///
/// @throws rank_mismatch_error, on every rank
void require_equal_nodes(const summing_ranks& in_node, const summing_ranks& inter_node);

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
  /// All ranks; with nodes, all ranks of all nodes.
  summing_ranks all() const;

  /// Tries the sums over ranks.
  /// @throws communicator_error, on every rank, if a result is not the sum
  void require_sums() const;

  /// Tries the collectives of bytes. A single rank, or node, sends nothing.
  /// @throws communicator_error, on every rank, if a result has wrong bytes
  void require_bytes(byte_collectives called) const;

 private:
  rank_place place() const;
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
void require_consistent_ranks(const consistency_check& facts, collectives& ranks, const machine& on,
                              byte_collectives called = {});

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/detail/exchange/consistency.ipp"
#endif
