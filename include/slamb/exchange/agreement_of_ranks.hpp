// What ranks do before an optimizer's first step: they try the collectives that it will call and compare facts, by a
// communicator whose spans are in the backend's memory.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "slamb/communicator/any_communicator.hpp"
#include "slamb/communicator/requirements.hpp"
#include "slamb/core/agreement.hpp"
#include "slamb/core/arena.hpp"
#include "slamb/exchange/agreement_of_nodes.hpp"
#include "slamb/exchange/tried_collectives.hpp"

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

/// Calls call(there, stream) with `values` [n] of host memory in the backend's memory, and brings back what it leaves there.
/// Waits by `ranks`.
template <class T, class Executor, class Call>
void call_in_backend(std::span<T> values, const Executor& executor, const allocator& memory,
                     const typename Executor::ranks_type& ranks, const Call& call) {
  if constexpr (Executor::is_synchronous) {
    call(values, executor.stream());
  } else {
    arena copy;
    const region<T> planned = copy.plan<T>("agreement", values.size());
    copy.allocate(memory);
    const std::span<T> there = copy.view(planned);
    executor.upload(std::span<const T>(values), there);
    call(there, executor.stream());
    executor.download(std::as_bytes(there), std::as_writable_bytes(values), ranks);
  }
}

/// The ranks of an optimizer, with values of host memory. Where ranks are nodes, `size` of them in all.
template <class Stream, class Executor>
class host_ranks {
 public:
  host_ranks(any_communicator<Stream>& ranks, const Executor& executor, const allocator& memory)
      : ranks_(ranks), executor_(executor), memory_(memory) {}

  /// Those that all_reduce_sum joins.
  summing_ranks between() const {
    return summing(ranks_.rank(), ranks_.size(),
                   [this](std::span<float> values, Stream stream) { ranks_.all_reduce_sum(values, stream); });
  }
  /// Those that reduce_locally joins.
  summing_ranks in_node() const {
    return summing(ranks_.local_rank(), ranks_.local_size(),
                   [this](std::span<float> values, Stream stream) { ranks_.reduce_locally(values, stream); });
  }
  /// All ranks of all nodes where ranks are nodes.
  summing_ranks all() const {
    if (!ranks_.joins_nodes()) return between();
    return summing(ranks_.rank() * ranks_.local_size() + ranks_.local_rank(), ranks_.size() * ranks_.local_size(),
                   [this](std::span<float> values, Stream stream) {
                     ranks_.reduce_locally(values, stream);
                     ranks_.all_reduce_sum(values, stream);
                   });
  }

  /// Tries what sums over ranks.
  /// @throws communicator_error, on every rank, if it gives other values than the sum
  void require_sums() const {
    if (all().size == 1) return;
    detail::collective_fault fault;
    if (ranks_.local_size() > 1) fault = detail::fault_of_sum(in_node(), detail::collective_fault::reduce_locally);
    if (ranks_.size() > 1) {
      const auto next = detail::fault_of_sum(between(), detail::collective_fault::all_reduce_sum);
      if (fault.of == detail::collective_fault::none) fault = next;
    }
    require_no_fault(fault);
  }

  /// Tries collectives of bytes. One rank, or node, has nobody to send anything to.
  /// @throws communicator_error, on every rank, if one of them gives other bytes than it should
  void require_bytes(detail::byte_collectives called) const {
    if (ranks_.size() == 1 || !(called.of_codes || called.of_choices)) return;
    const detail::trying_rank me = trying();
    detail::collective_fault fault;
    const auto keep_first = [&fault](const detail::collective_fault& next) {
      if (fault.of == detail::collective_fault::none) fault = next;
    };
    if (called.of_codes) {
      keep_first(detail::fault_of_all_to_all(me));
      keep_first(detail::fault_of_all_gather(me));
    }
    if (called.of_choices) keep_first(detail::fault_of_broadcast(me));
    require_no_fault(fault);
  }

 private:
  template <class Sum>
  summing_ranks summing(int rank, int size, const Sum& sum) const {
    return {rank, size, [this, sum](std::span<float> values) { in_backend(values, sum); }};
  }
  detail::trying_rank trying() const {
    constexpr std::size_t chunk = detail::tried_bytes;
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
  void require_no_fault(const detail::collective_fault& fault) const {
    detail::require_no_fault(fault, all(), [this](const std::string& reason) { ranks_.abort(reason); });
  }

  any_communicator<Stream>& ranks_;
  const Executor& executor_;
  const allocator& memory_;
};

/// Tries the collectives and compares facts: what sums over ranks before the facts, which are compared by it, and the others
/// after them, once it is known that all ranks will call the same. All ranks of all nodes where ranks are nodes.
///
/// @throws disagreement_error, on every rank, if ranks say different things; communicator_error, on every rank, if a
///         collective gives other values than it should, or fails
template <class Stream, class Executor>
void require_agreement(const agreement& facts, any_communicator<Stream>& ranks, const Executor& executor,
                       const allocator& memory, detail::byte_collectives called = {}) {
  const host_ranks all(ranks, executor, memory);
  if (ranks.joins_nodes()) require_alike_nodes(all.in_node(), all.between());
  all.require_sums();
  facts.require(all.all());
  all.require_bytes(called);
}

}  // namespace slamb
