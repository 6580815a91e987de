// The checks of ranks before an optimizer's first step: they try the collectives that it will call, and compare their options.
// The communicator's spans are in the backend's memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/detail/requirements.hpp"
#include "slamb/core/detail/consistency_check.hpp"
#include "slamb/core/error.hpp"
#include "slamb/detail/exchange/tried_collectives.hpp"
#include "slamb/detail/pass/arena.hpp"

namespace slamb::detail {

/// True if all ranks have the same number. Works even if ranks disagree on the number of ranks: each rank adds 1 at each digit of
/// its number in a table of fixed size, and the digits of an equal number are counted as often as there are ranks.
inline bool all_equal(std::uint64_t number, const summing_ranks& ranks) {
  constexpr std::size_t digits = 16;
  std::array<float, digits * 16> counted{};
  const auto place = [number](std::size_t digit) { return 16 * digit + ((number >> (4 * digit)) & 15U); };
  for (std::size_t digit = 0; digit < digits; ++digit) counted[place(digit)] = 1.0F;
  ranks.all_reduce_sum(counted);
  for (std::size_t digit = 0; digit < digits; ++digit)
    if (counted[place(digit)] != static_cast<float>(ranks.size)) return false;
  return true;
}

/// Ranks of a node compare the number of their node and the number of nodes. Then nodes compare their numbers of ranks. Every
/// rank makes both comparisons, even if the first has failed, because other ranks wait for the second.
///
/// @throws rank_mismatch_error, on every rank
inline void require_equal_nodes(const summing_ranks& in_node, const summing_ranks& inter_node) {
  const auto nodes = static_cast<std::uint64_t>(inter_node.size);
  const auto node = static_cast<std::uint64_t>(inter_node.rank);
  const bool is_one = all_equal(nodes << 32U | node, in_node);
  constexpr std::uint64_t is_none = 0;  // no node has this size
  const bool are_alike = all_equal(is_one ? static_cast<std::uint64_t>(in_node.size) : is_none, inter_node);
  if (is_one && are_alike) return;
  throw rank_mismatch_error(
      "slamb: nodes must have equal numbers of ranks, "
      "and all ranks of a node must report the same node id; rank " +
      std::to_string(in_node.rank) + " of " + std::to_string(in_node.size) + " reports node " + std::to_string(node) +
      " of " + std::to_string(nodes) +
      ". Connect each rank with the ranks that have the same number in the other nodes, and check that collectives "
      "within a node and between nodes sum over all their ranks");
}

/// Requires that each rank has the same parameters as the first rank of its node. Nodes may differ.
///
/// @param of_tensor  [tensors] a hash of this rank's parameters
/// @throws rank_mismatch_error, on every rank of every node
inline void require_equal_in_nodes(std::span<const std::uint64_t> of_tensor, const summing_ranks& in_node,
                                   const summing_ranks& all) {
  constexpr std::size_t pieces = 4;  // of 16 bits, which a float holds exactly
  const auto piece = [of_tensor](std::size_t i) {
    return static_cast<float>((of_tensor[i / pieces] >> (16 * (i % pieces))) & 0xFFFFU);
  };
  std::vector<float> of_first(of_tensor.size() * pieces, 0.0F);
  if (in_node.rank == 0)
    for (std::size_t i = 0; i < of_first.size(); ++i) of_first[i] = piece(i);
  in_node.all_reduce_sum(of_first);
  std::size_t same = 0;
  while (same < of_first.size() && of_first[same] == piece(same)) ++same;

  // The tensor in which each rank differs, as two halves; 0: none.
  const std::uint64_t number = same == of_first.size() ? 0 : same / pieces + 1;
  std::vector<float> of_ranks(static_cast<std::size_t>(all.size) * 2, 0.0F);
  of_ranks[static_cast<std::size_t>(all.rank) * 2] = static_cast<float>(number & 0xFFFFU);
  of_ranks[static_cast<std::size_t>(all.rank) * 2 + 1] = static_cast<float>(number >> 16U);
  all.all_reduce_sum(of_ranks);
  for (std::size_t rank = 0; 2 * rank < of_ranks.size(); ++rank) {
    const auto found = static_cast<std::uint64_t>(of_ranks[2 * rank] + 65536.0F * of_ranks[2 * rank + 1]);
    if (found == 0) continue;
    synchronize_before_throwing(all);
    throw rank_mismatch_error("slamb: ranks of a node differ in the parameters of tensor " + std::to_string(found - 1) +
                              ": rank " + std::to_string(rank) +
                              " has other parameters than the first rank of its node; ranks of a node must load the "
                              "same state, and start with the same parameters");
  }
}

/// The allocator of a backend: the user's, or the backend's own.
template <class Backend>
allocator allocator_of(const Backend& backend) {
  if constexpr (requires { backend.make_allocator(); })
    return backend.make_allocator();
  else
    return backend.memory;
}

/// @throws std::invalid_argument if rank and size are out of range
inline void require_rank(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw std::invalid_argument("slamb: the communicator says it is rank " + std::to_string(rank) + " of " +
                                std::to_string(size) + "; ranks must be 0 … size − 1");
}

/// Copies `values` [n] from host memory to the backend's memory, calls call(there, stream), and copies the result back. Waits by
/// `ranks`.
template <class T, class Executor, class Call>
void call_in_backend(std::span<T> values, const Executor& executor, const allocator& memory,
                     const typename Executor::ranks_type& ranks, const Call& call) {
  if constexpr (Executor::is_synchronous) {
    call(values, executor.stream());
  } else {
    arena copy;
    const region<T> planned = copy.plan<T>("comparison", values.size());
    copy.allocate(memory);
    const std::span<T> there = copy.view(planned);
    executor.upload(std::span<const T>(values), there);
    call(there, executor.stream());
    executor.download(std::as_bytes(there), std::as_writable_bytes(values), ranks);
  }
}

/// The collectives of an optimizer's ranks, on values in host memory.
template <class Stream, class Executor>
class host_ranks {
 public:
  host_ranks(any_communicator<Stream>& ranks, const Executor& executor, const allocator& memory)
      : ranks_(ranks), executor_(executor), memory_(memory) {}

  /// The ranks that all_reduce_sum joins.
  summing_ranks inter_node() const {
    return summing(ranks_.rank(), ranks_.size(),
                   [this](std::span<float> values, Stream stream) { ranks_.all_reduce_sum(values, stream); });
  }
  /// The ranks that all_reduce_in_node joins.
  summing_ranks in_node() const {
    return summing(ranks_.local_rank(), ranks_.local_size(),
                   [this](std::span<float> values, Stream stream) { ranks_.all_reduce_in_node(values, stream); });
  }
  /// All ranks; with nodes, all ranks of all nodes.
  summing_ranks all() const {
    if (!ranks_.joins_nodes()) return inter_node();
    return summing(ranks_.rank() * ranks_.local_size() + ranks_.local_rank(), ranks_.size() * ranks_.local_size(),
                   [this](std::span<float> values, Stream stream) {
                     ranks_.all_reduce_in_node(values, stream);
                     ranks_.all_reduce_sum(values, stream);
                   });
  }

  /// Tries the sums over ranks.
  /// @throws communicator_error, on every rank, if a result is not the sum
  void require_sums() const {
    if (all().size == 1) return;
    collective_fault fault;
    if (ranks_.local_size() > 1) fault = fault_of_sum(in_node(), collective_fault::all_reduce_in_node);
    if (ranks_.size() > 1) {
      const auto next = fault_of_sum(inter_node(), collective_fault::all_reduce_sum);
      if (fault.of == collective_fault::none) fault = next;
    }
    require_no_fault(fault);
  }

  /// Tries the collectives of bytes. A single rank, or node, sends nothing.
  /// @throws communicator_error, on every rank, if a result has wrong bytes
  void require_bytes(byte_collectives called) const {
    if (ranks_.size() == 1 || !(called.of_codes || called.of_choices)) return;
    const trying_rank me = trying();
    collective_fault fault;
    const auto keep_first = [&fault](const collective_fault& next) {
      if (fault.of == collective_fault::none) fault = next;
    };
    if (called.of_codes) {
      keep_first(fault_of_all_to_all(me));
      keep_first(fault_of_all_gather(me));
    }
    if (called.of_choices) keep_first(fault_of_broadcast(me));
    require_no_fault(fault);
  }

 private:
  template <class Sum>
  summing_ranks summing(int rank, int size, const Sum& sum) const {
    return {rank, size, [this, sum](std::span<float> values) { in_backend(values, sum); }};
  }
  trying_rank trying() const {
    constexpr std::size_t chunk = tried_bytes;
    using bytes = std::span<std::byte>;
    return {.rank = ranks_.rank(),
            .size = ranks_.size(),
            .all_gather =
                [this](bytes buffer) {
                  in_backend(buffer, [this](bytes there, Stream stream) {
                    ranks_.all_gather(std::span<const std::byte>(there.first(chunk)), there.subspan(chunk), stream);
                  });
                },
            .all_to_all =
                [this](bytes buffer) {
                  in_backend(buffer, [this](bytes there, Stream stream) {
                    const bytes sent = there.first(there.size() / 2);
                    ranks_.all_to_all(std::span<const std::byte>(sent), there.subspan(sent.size()), stream);
                  });
                },
            .broadcast =
                [this](bytes buffer, int root) {
                  in_backend(buffer,
                             [this, root](bytes there, Stream stream) { ranks_.broadcast(there, root, stream); });
                }};
  }
  template <class T, class Call>
  void in_backend(std::span<T> values, const Call& call) const {
    call_in_backend(values, executor_, memory_, ranks_, call);
  }
  void require_no_fault(const collective_fault& fault) const {
    detail::require_no_fault(fault, all(), [this](const std::string& reason) { ranks_.abort(reason); });
  }

  any_communicator<Stream>& ranks_;
  const Executor& executor_;
  const allocator& memory_;
};

/// Tries the collectives and compares options. Sums come first, because options are compared by them; other collectives come
/// last, once it is certain that all ranks call the same. With nodes, for all ranks of all nodes.
///
/// @throws rank_mismatch_error, on every rank, if ranks differ in options or tensors; communicator_error, on every rank, if a
///         collective gives other values than it should, or fails
template <class Stream, class Executor>
void require_consistent_ranks(const consistency_check& facts, any_communicator<Stream>& ranks, const Executor& executor,
                              const allocator& memory, byte_collectives called = {}) {
  const host_ranks all(ranks, executor, memory);
  if (ranks.joins_nodes()) require_equal_nodes(all.in_node(), all.inter_node());
  all.require_sums();
  facts.require(all.all());
  all.require_bytes(called);
}

}  // namespace slamb::detail
