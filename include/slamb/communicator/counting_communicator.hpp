// A decorator that forwards to another Communicator and counts its calls and bytes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "slamb/communicator/self_communicator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb {

/// Forwards every collective that `Wrapped` has, for the same element types and streams, and records the traffic of the
/// collectives that returned. A collective that throws is not counted. The payload is the vector of an all_reduce or a
/// broadcast, the whole result of an all_gather, and all that is sent by an all_to_all; `bytes_sent_by` computes bytes on the
/// wire from it.
///
/// *Cost*: a few additions per collective. *Stream* and *Determinism*: those of `Wrapped`; a collective is counted when it is
/// enqueued.
template <communicator Wrapped = self_communicator>
class counting_communicator {
 public:
  counting_communicator() requires std::default_initializable<Wrapped>
  = default;
  explicit counting_communicator(Wrapped wrapped) : wrapped_(std::move(wrapped)) {}

  int rank() const { return static_cast<int>(wrapped_.rank()); }
  int size() const { return static_cast<int>(wrapped_.size()); }

  /// `values` [n] become their sum over ranks.
  template <class T, class Stream>
  requires capability::has_all_reduce_sum<Wrapped, T, Stream>
  void all_reduce_sum(std::span<T> values, Stream stream) {
    wrapped_.all_reduce_sum(values, stream);
    record(collective::all_reduce, values.size(), sizeof(T));
  }

  /// `values` [n] become their sum over ranks. The first `header` values are not payload: ranks compare them, and they are
  /// counted separately.
  template <class T, class Stream>
  requires capability::has_all_reduce_sum<Wrapped, T, Stream>
  void all_reduce_sum_with_header(std::span<T> values, std::size_t header, Stream stream) {
    wrapped_.all_reduce_sum(values, stream);
    if (values.size() > header) record(collective::all_reduce, values.size() - header, sizeof(T));
    const std::uint64_t bytes = header * sizeof(T);
    comparisons_ = comparisons_ + traffic{values.size() > header ? 0U : 1U, header, bytes,
                                          traffic::bytes_sent_by(collective::all_reduce, bytes, size())};
  }

  /// `values` [n] become those of rank `root`.
  template <class T, class Stream>
  requires capability::has_broadcast<Wrapped, T, Stream>
  void broadcast(std::span<T> values, int root, Stream stream) {
    wrapped_.broadcast(values, root, stream);
    record(collective::broadcast, values.size(), sizeof(T));
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order.
  template <class T, class Stream>
  requires capability::has_all_gather<Wrapped, T, Stream>
  void all_gather(std::span<const T> mine, std::span<T> all, Stream stream) {
    wrapped_.all_gather(mine, all, stream);
    record(collective::all_gather, all.size(), sizeof(T));
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n].
  template <class T, class Stream>
  requires capability::has_all_to_all<Wrapped, T, Stream>
  void all_to_all(std::span<const T> send, std::span<T> receive, Stream stream) {
    wrapped_.all_to_all(send, receive, stream);
    record(collective::all_to_all, send.size(), sizeof(T));
  }

  /// For a Wrapped whose ranks are nodes: this rank among the ranks of its node. Traffic within the node is not counted.
  int local_rank() const requires(requires(const Wrapped& wrapped) { wrapped.local_rank(); }) {
    return static_cast<int>(wrapped_.local_rank());
  }
  int local_size() const requires(requires(const Wrapped& wrapped) { wrapped.local_size(); }) {
    return static_cast<int>(wrapped_.local_size());
  }
  /// `values` [n] become their sum over the ranks of the node.
  template <class Stream>
  requires capability::has_all_reduce_in_node<Wrapped, Stream>
  void all_reduce_in_node(std::span<float> values, Stream stream) { wrapped_.all_reduce_in_node(values, stream); }

  /// For a Wrapped with shards: this rank in its shard group. Traffic within the group is not counted.
  int shard_rank() const requires(requires(const Wrapped& wrapped) { wrapped.shard_rank(); }) {
    return static_cast<int>(wrapped_.shard_rank());
  }
  int shard_size() const requires(requires(const Wrapped& wrapped) { wrapped.shard_size(); }) {
    return static_cast<int>(wrapped_.shard_size());
  }
  /// `values` [n] become their sum over the shard group.
  template <class Stream>
  requires capability::has_shards<Wrapped, Stream>
  void all_reduce_in_shards(std::span<float> values, Stream stream) { wrapped_.all_reduce_in_shards(values, stream); }
  /// `all` [shard_size()·n] becomes `mine` [n] of each rank of the shard group, in the order of shards.
  template <class Stream>
  requires capability::has_shards<Wrapped, Stream>
  void all_gather_in_shards(std::span<const std::byte> mine, std::span<std::byte> all, Stream stream) {
    wrapped_.all_gather_in_shards(mine, all, stream);
  }

  /// For a Wrapped that knows its collectives only at run time.
  bool has(collective kind) const requires(requires(const Wrapped& wrapped) { wrapped.has(collective::broadcast); }) {
    return wrapped_.has(kind);
  }
  /// Forwarded if Wrapped has them. @{
  template <class Stream>
  requires detail::has_wait<Wrapped, Stream>
  void wait(Stream stream) { wrapped_.wait(stream); }
  void check() requires detail::has_check<Wrapped> { wrapped_.check(); }
  void abort(const std::string& reason) requires detail::has_abort<Wrapped> { wrapped_.abort(reason); }
  /// @}

  /// Traffic of this rank since construction or the last `reset()`.
  const traffic_counts& counts() const noexcept { return counts_; }
  /// Traffic of headers; `rounds` counts the collectives that had no payload.
  const traffic& comparisons() const noexcept { return comparisons_; }
  /// Sets all counts to zero.
  void reset() noexcept {
    counts_ = {};
    comparisons_ = {};
  }
  /// The wrapped communicator. Calls made on it directly are not counted.
  Wrapped& wrapped() noexcept { return wrapped_; }
  const Wrapped& wrapped() const noexcept { return wrapped_; }

 private:
  void record(collective kind, std::size_t elements, std::size_t element_size) {
    counts_.record(kind, elements, element_size, size());
  }

  Wrapped wrapped_{};
  traffic_counts counts_{};
  traffic comparisons_{};
};

static_assert(capability::has_all_reduce_sum<counting_communicator<>, float>);
static_assert(capability::has_all_gather<counting_communicator<>, float>);
static_assert(capability::has_all_to_all<counting_communicator<>, float>);
static_assert(capability::has_broadcast<counting_communicator<>, float>);

}  // namespace slamb
