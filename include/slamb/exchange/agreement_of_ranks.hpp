// What ranks do beside the exchanges of an optimizer, by a communicator whose spans are in the backend's memory: they compare
// facts before anything else, and wait for each other.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "slamb/core/agreement.hpp"
#include "slamb/core/arena.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/exchange/agreement_of_nodes.hpp"

namespace slamb {

/// The allocator of a backend: the user's, or the backend's own.
template <class Backend>
allocator allocator_of(const Backend& backend) {
  if constexpr (requires { backend.make_allocator(); })
    return backend.make_allocator();
  else
    return backend.memory;
}

/// @throws std::invalid_argument if no communicator can be such a rank
inline void require_rank(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw std::invalid_argument("slamb: the communicator says it is rank " + std::to_string(rank) + " of " +
                                std::to_string(size) + "; ranks must be 0 … size − 1");
}

/// Waits for what has been enqueued by the communicator, if it can tell of ranks that do not come, which the stream alone
/// would wait for in vain.
/// @throws communicator_error
template <class Communicator, class Executor>
void wait_for_ranks(Communicator& ranks, const Executor& executor) {
  if constexpr (requires { ranks.wait(executor.stream()); }) ranks.wait(executor.stream());
}

/// A communicator of values in host memory, by one of values in the backend's.
template <class Communicator, class Executor>
struct through_backend_memory {
  Communicator& ranks;
  const Executor& executor;
  allocator memory;

  int rank() const { return ranks.rank(); }
  int size() const { return ranks.size(); }

  template <class Stream>
  void all_reduce_sum(std::span<float> values, Stream stream) {
    arena copy;
    const region<float> planned = copy.plan<float>("agreement", values.size());
    copy.allocate(memory);
    const std::span<float> there = copy.view(planned);
    executor.upload(std::span<const float>(values), there);
    ranks.all_reduce_sum(there, stream);
    executor.download(std::as_bytes(there), std::as_writable_bytes(values));
  }
};

/// Calls compare(r) with communicators like `ranks` whose values are in host memory.
template <class Executor, class Compare, class... Communicators>
void compare_by_host_values(const Executor& executor, const allocator& memory, const Compare& compare,
                            Communicators&... ranks) {
  if constexpr (Executor::is_synchronous) {
    compare(ranks...);
  } else {
    std::tuple<through_backend_memory<Communicators, Executor>...> through({ranks, executor, memory}...);
    std::apply(compare, through);
  }
}

/// All ranks of all nodes where ranks are nodes.
///
/// @throws disagreement_error, on every rank, if ranks say different things; communicator_error
template <class Communicator, class Executor>
void require_agreement(const agreement& facts, Communicator& ranks, const Executor& executor, const allocator& memory) {
  const auto stream = executor.stream();
  const auto compare = [&](auto& all) { facts.require(all, stream); };
  if constexpr (has_local_reduction<Communicator, std::remove_const_t<decltype(stream)>>) {
    ranks_of_node<Communicator> in_node{ranks};
    ranks_of_all_nodes<Communicator> all{ranks};
    compare_by_host_values(
        executor, memory, [&](auto& node, auto& nodes) { require_alike_nodes(node, nodes, stream); }, in_node, ranks);
    compare_by_host_values(executor, memory, compare, all);
  } else {
    compare_by_host_values(executor, memory, compare, ranks);
  }
}

}  // namespace slamb
