// What ranks do before an optimizer's first step: they compare facts, by a communicator whose spans are in the backend's memory.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/core/agreement.hpp"
#include "slamb/core/arena.hpp"
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

/// Sums values of host memory, by a function sum(span, stream) of values in the backend's memory. Waits by `ranks`.
template <class Executor, class Sum>
void sum_host_values(std::span<float> values, const Executor& executor, const allocator& memory,
                     const typename Executor::ranks_type& ranks, const Sum& sum) {
  if constexpr (Executor::is_synchronous) {
    sum(values, executor.stream());
  } else {
    arena copy;
    const region<float> planned = copy.plan<float>("agreement", values.size());
    copy.allocate(memory);
    const std::span<float> there = copy.view(planned);
    executor.upload(std::span<const float>(values), there);
    sum(there, executor.stream());
    executor.download(std::as_bytes(there), std::as_writable_bytes(values), ranks);
  }
}

/// All ranks of all nodes where ranks are nodes.
///
/// @param nodes_are_alike  it is known that the nodes have equally many ranks
/// @throws disagreement_error, on every rank, if ranks say different things; communicator_error
template <class Stream, class Executor>
void require_agreement(const agreement& facts, any_communicator<Stream>& ranks, const Executor& executor,
                       const allocator& memory, bool nodes_are_alike = false) {
  const auto ranks_that = [&](int rank, int size, auto sum) {
    return summing_ranks{rank, size,
                         [&, sum](std::span<float> values) { sum_host_values(values, executor, memory, ranks, sum); }};
  };
  const auto in_node = [&ranks](std::span<float> values, Stream stream) { ranks.reduce_locally(values, stream); };
  const auto between = [&ranks](std::span<float> values, Stream stream) { ranks.all_reduce_sum(values, stream); };
  if (!ranks.joins_nodes()) return facts.require(ranks_that(ranks.rank(), ranks.size(), between));
  if (!nodes_are_alike)
    require_alike_nodes(ranks_that(ranks.local_rank(), ranks.local_size(), in_node),
                        ranks_that(ranks.rank(), ranks.size(), between));
  facts.require(ranks_that(ranks.rank() * ranks.local_size() + ranks.local_rank(), ranks.size() * ranks.local_size(),
                           [&](std::span<float> values, Stream stream) {
                             in_node(values, stream);
                             between(values, stream);
                           }));
}

}  // namespace slamb
