// Nodes as ranks, for nodes whose ranks reach each other much faster than other nodes: the ranks of a node sum by one
// communicator, and the leaders of nodes exchange by another.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "slamb/communicator/detail/call_or_abort.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb {

/// A node of several ranks as one rank. An optimizer averages the gradients of the node's ranks by `Intra`, in full precision.
/// It exchanges data, compressed or not, by `Inter` between the leaders of the nodes, which have local rank 0. `Intra`
/// broadcasts the result in the node.
///
/// rank() and size() count nodes. Every rank of a node makes the same calls with the same values, holds the same state bit for
/// bit, and takes the same step. So a saved state of one rank is the state of all. statistics().traffic is the same on all
/// ranks of a node: it counts the data that the leader sends to other nodes. Other ranks send nothing there, and traffic within
/// a node is not counted.
///
/// @tparam Intra  must have all_reduce_sum and broadcast of floats, and broadcast of bytes too if an optimizer sends codes or
///   choices: each result of `Inter` is broadcast in the node with its own element type
/// @tparam Inter  decides which collectives there are
///
/// Every collective
/// @throws the exceptions of `Intra` and `Inter`. A failure is final: it is reported to the ranks that wait in the other
///   communicator, by its `abort(reason)`, so that every rank of every node throws. Without `abort` those ranks time out. The
///   ranks of a node wait while their leader exchanges, so the timeout of `Intra` must be longer than an exchange may take,
///   including the timeout of `Inter`. If only the last broadcast of a step fails, other nodes may have taken the step.
///
/// *Cost*: each collective of the recipe is one broadcast on a rank that is not the leader. An optimizer has another buffer for
/// the gradient of the node, 4 bytes per parameter, and a step has one sum within the node. A node of one rank has none of
/// these costs.
/// *Stream* and *Determinism*: as `Intra` and `Inter`.
template <communicator Intra, communicator Inter>
class hierarchical_communicator {
 public:
  /// @param intra  joins the ranks of this node
  /// @param inter  joins the ranks of all nodes that have the same local rank, in the order of nodes, which is the same for
  ///   every local rank. All nodes must have the same number of ranks; optimizers compare it. Only the communicator of local
  ///   rank 0 sends and receives.
  hierarchical_communicator(Intra intra, Inter inter) : intra_(std::move(intra)), inter_(std::move(inter)) {}

  int rank() const { return static_cast<int>(inter_.rank()); }        ///< of the node
  int size() const { return static_cast<int>(inter_.size()); }        ///< number of nodes
  int local_rank() const { return static_cast<int>(intra_.rank()); }  ///< in the node
  int local_size() const { return static_cast<int>(intra_.size()); }  ///< ranks of the node

  /// True if `Intra` can broadcast the results of `Inter` for spans of T in the node.
  template <class T, class Stream>
  static constexpr bool broadcasts_in_node = capability::has_broadcast<Intra, T, Stream>;

  Intra& local() noexcept { return intra_; }
  const Intra& local() const noexcept { return intra_; }
  Inter& inter_node() noexcept { return inter_; }
  const Inter& inter_node() const noexcept { return inter_; }

  /// `values` [n] become their sum over the ranks of the node.
  template <class Stream>
  requires capability::has_all_reduce_sum<Intra, float, Stream>
  void all_reduce_in_node(std::span<float> values, Stream stream) {
    if (local_size() > 1) in_node([&] { intra_.all_reduce_sum(values, stream); });
  }

  /// `values` [n] become their sum over nodes.
  template <class T, class Stream>
  requires(capability::has_all_reduce_sum<Inter, T, Stream>&&
               capability::has_broadcast<Intra, T, Stream>) void all_reduce_sum(std::span<T> values, Stream stream) {
    by_leader(values, stream, [&] { inter_.all_reduce_sum(values, stream); });
  }

  /// `values` [n] become those of node `root`.
  template <class T, class Stream>
  requires(capability::has_broadcast<Inter, T, Stream>&& capability::has_broadcast<Intra, T, Stream>) void broadcast(
      std::span<T> values, int root, Stream stream) {
    by_leader(values, stream, [&] { inter_.broadcast(values, root, stream); });
  }

  /// `all` [size()·n] becomes every node's `mine` [n], in the order of nodes.
  template <class T, class Stream>
  requires(capability::has_all_gather<Inter, T, Stream>&& capability::has_broadcast<Intra, T, Stream>) void all_gather(
      std::span<const T> mine, std::span<T> all, Stream stream) {
    by_leader(all, stream, [&] { inter_.all_gather(mine, all, stream); });
  }

  /// Chunk j of `receive` [size()·n] becomes this node's chunk of node j's `send` [size()·n].
  template <class T, class Stream>
  requires(capability::has_all_to_all<Inter, T, Stream>&& capability::has_broadcast<Intra, T, Stream>) void all_to_all(
      std::span<const T> send, std::span<T> receive, Stream stream) {
    by_leader(receive, stream, [&] { inter_.all_to_all(send, receive, stream); });
  }

  /// True if the collective exists. For an `Intra` or `Inter` that knows its collectives only at run time.
  bool has(collective kind) const {
    return detail::says_it_has(inter_, kind) && detail::says_it_has(intra_, collective::broadcast);
  }

  /// Checks if a peer of this rank, in the node or between nodes, has reported a failure. Does not wait.
  /// @throws the exceptions of `Intra` and `Inter`
  void check() requires(detail::has_check<Intra> || detail::has_check<Inter>) {
    if constexpr (detail::has_check<Intra>) in_node([&] { intra_.check(); });
    if constexpr (detail::has_check<Inter>) between_nodes([&] { inter_.check(); });
  }

  /// Waits until all work on `stream` is done.
  /// @throws the exceptions of `Intra` and `Inter` if peers do not come
  template <class Stream>
  requires(detail::has_wait<Intra, Stream> || detail::has_wait<Inter, Stream>) void wait(Stream stream) {
    // Only on the leader: other ranks have no work of Inter on their stream, and may wait as long as the leader's exchange
    // takes.
    if constexpr (detail::has_wait<Inter, Stream>)
      if (local_rank() == 0) between_nodes([&] { inter_.wait(stream); });
    if constexpr (detail::has_wait<Intra, Stream>) in_node([&] { intra_.wait(stream); });
  }

  /// Both communicators fail with `reason`, and report it to the peers that can be reached. For a rank that cannot go on.
  void abort(const std::string& reason) requires(detail::has_abort<Intra> || detail::has_abort<Inter>) {
    if constexpr (detail::has_abort<Intra>) intra_.abort(reason);
    if constexpr (detail::has_abort<Inter>) inter_.abort(reason);
  }

 private:
  /// Makes the collective on the leader, then broadcasts its `result` to the ranks of the node.
  template <class T, class Stream, class Collective>
  void by_leader(std::span<T> result, Stream stream, const Collective& collective) {
    if (local_rank() == 0) between_nodes(collective);
    if (local_size() > 1) in_node([&] { intra_.broadcast(result, 0, stream); });
  }

  template <class Call>
  void in_node(const Call& call) {
    detail::call_or_abort(
        *this, [this] { return "in node " + std::to_string(rank()) + ": "; }, call);
  }
  template <class Call>
  void between_nodes(const Call& call) {
    detail::call_or_abort(
        *this, [] { return std::string("between nodes: "); }, call);
  }

  Intra intra_;
  Inter inter_;
};

}  // namespace slamb
