// Nodes as ranks: ranks of a node sum what they have by one communicator, and their leaders exchange by another.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <utility>

#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb {

/// A node of several ranks as one rank: an optimizer averages the gradients of the node's ranks by `Intra`, in full
/// precision, and exchanges what it sends, compressed or not, by `Inter` between the nodes' leaders, local rank 0 of each.
/// `Intra` broadcasts what comes of it. For nodes whose ranks reach each other much faster than other nodes.
///
/// rank() and size() are of nodes. Every rank of a node makes the same calls with the same values, holds the same state bit
/// for bit, and takes the same step. So a saved state of one is the state of all, and statistics().traffic, the same on all
/// of them, is what the node's leader sends to other nodes: the others send nothing there, and what ranks of a node send each
/// other is not counted.
///
/// @tparam Intra  must have all_reduce_sum and broadcast of floats, and broadcast of bytes too where an optimizer sends codes or
///                choices: each result of `Inter` is broadcast in the node, as what it is
/// @tparam Inter  decides which collectives there are
///
/// Every collective
/// @throws what a part throws. A failure is final: it is reported to the ranks that wait in the other communicator, by its
/// `abort(reason)` if it has one, so that every rank of every node throws; else they time out. Ranks of a node wait while their
/// leader exchanges, so the timeout of `Intra` must be longer than what an exchange may take, that of `Inter` included. Where
/// only the last broadcast of a step fails, other nodes may have taken the step.
///
/// *Cost*: a rank that is not the leader does each collective of the recipe as one broadcast; an optimizer has another buffer
/// for the gradient of the node, 4 bytes a parameter, and a step one sum within the node. Nothing of this in a node of one.
/// *Stream* and *Determinism*: as the parts.
template <communicator Intra, communicator Inter>
class hierarchical_communicator {
 public:
  /// @param intra  joins the ranks of this node
  /// @param inter  joins the ranks with this one's local rank of all nodes, in the order of nodes, which is the same for every
  ///               local rank. All nodes have the same number of ranks; optimizers compare it. Only that of local rank 0
  ///               sends and receives.
  hierarchical_communicator(Intra intra, Inter inter) : intra_(std::move(intra)), inter_(std::move(inter)) {}

  int rank() const { return static_cast<int>(inter_.rank()); }        ///< of the node
  int size() const { return static_cast<int>(inter_.size()); }        ///< number of nodes
  int local_rank() const { return static_cast<int>(intra_.rank()); }  ///< in the node
  int local_size() const { return static_cast<int>(intra_.size()); }  ///< ranks of the node

  /// Whether `Intra` can broadcast to the node what `Inter` has made of spans of T.
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

  /// Whether there is a collective, where the type of a part leaves that open.
  bool has(collective kind) const {
    return detail::says_it_has(inter_, kind) && detail::says_it_has(intra_, collective::broadcast);
  }

  /// Checks whether a peer of this rank, in the node or between nodes, has reported a failure. Does not wait.
  /// @throws what the parts do
  void check() requires(detail::has_check<Intra> || detail::has_check<Inter>) {
    if constexpr (detail::has_check<Intra>) in_node([&] { intra_.check(); });
    if constexpr (detail::has_check<Inter>) between_nodes([&] { inter_.check(); });
  }

  /// Waits until all that is on `stream` is done.
  /// @throws what the parts do where peers do not come
  template <class Stream>
  requires(detail::has_wait<Intra, Stream> || detail::has_wait<Inter, Stream>) void wait(Stream stream) {
    // Not for the others, whose stream has nothing of Inter and may rest for as long as the leader's exchange takes.
    if constexpr (detail::has_wait<Inter, Stream>)
      if (local_rank() == 0) between_nodes([&] { inter_.wait(stream); });
    if constexpr (detail::has_wait<Intra, Stream>) in_node([&] { intra_.wait(stream); });
  }

  /// Both communicators fail with `reason`, as far as peers can be reached: for a rank that cannot go on.
  void abort(const std::string& reason) requires(detail::has_abort<Intra> || detail::has_abort<Inter>) {
    if constexpr (detail::has_abort<Intra>) intra_.abort(reason);
    if constexpr (detail::has_abort<Inter>) inter_.abort(reason);
  }

 private:
  /// The collective of the leaders, and its `result` to the ranks of the node.
  template <class T, class Stream, class Collective>
  void by_leader(std::span<T> result, Stream stream, const Collective& collective) {
    if (local_rank() == 0) between_nodes(collective);
    if (local_size() > 1) in_node([&] { intra_.broadcast(result, 0, stream); });
  }

  template <class Call>
  void in_node(const Call& call) {
    or_abort([this] { return "in node " + std::to_string(rank()) + ": "; }, call);
  }
  template <class Call>
  void between_nodes(const Call& call) {
    or_abort([] { return std::string("between nodes: "); }, call);
  }

  /// A failure in one part must not leave peers waiting in the other.
  template <class Place, class Call>
  void or_abort(const Place& place, const Call& call) {
    try {
      call();
    } catch (const std::exception& failure) {
      abort_parts(place() + failure.what());
      throw;
    } catch (...) {
      abort_parts(place() + "what was thrown is no std::exception");
      throw;
    }
  }
  void abort_parts(const std::string& reason) {
    if constexpr (requires(hierarchical_communicator & all) { all.abort(reason); }) abort(reason);
  }

  Intra intra_;
  Inter inter_;
};

}  // namespace slamb
