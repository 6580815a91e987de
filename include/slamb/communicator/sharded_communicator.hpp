// Ranks that hold shards of a model: one communicator exchanges with the ranks that hold the same shard, another takes sums over the
// shards of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "slamb/communicator/detail/call_or_abort.hpp"
#include "slamb/communicator/self_communicator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb {

/// For models whose tensors are cut into shards, as by FSDP, HSDP or tensor parallelism. The S ranks of a *shard group* hold a model
/// together. N such groups train it, and `Exchange` joins the N ranks that hold the same shard: an optimizer exchanges by it, compressed
/// or not, as it would with whole tensors. `Shards` joins the S ranks of the shard group. An optimizer takes sums over whole tensors by
/// it, such as the norms of trust ratios, and tells it of steps to be skipped: one small all_gather for each.
///
///     slamb::lamb<> optimizer(parameters, {}, slamb::sharded_communicator(replicas, shards));
///
/// Each rank passes the parts of the tensors that it holds, in the same order on all ranks; a part may have no elements. A tensor of
/// which several ranks hold the same part, such as a bias under tensor parallelism, says so by `parameter::shard`. All S·N ranks take
/// the same steps and skip the same steps.
///
/// rank() and size() are those of `Exchange`. Optimizers check at construction that all shard groups have S ranks, and that the ranks
/// of an `Exchange` hold the same shard. Without replicas, `Exchange` is a self_communicator.
///
/// @tparam Exchange  decides which collectives there are; not a communicator of nodes
/// @tparam Shards    must have all_reduce_sum of floats and all_gather of bytes
///
/// Every collective
/// @throws the exceptions of `Exchange` and `Shards`. A failure is final: it is reported to the ranks that wait in the other
///   communicator, by its `abort(reason)`, so that all S·N ranks throw. Without `abort` those ranks time out
///
/// *Cost*: statistics().in_shards counts the traffic within the shard group. It is not a part of statistics().traffic.
/// *Stream* and *Determinism*: as `Exchange` and `Shards`. Sums over shards are added in the order of shards, so they have the same bits
/// on all ranks of the group.
template <communicator Exchange, communicator Shards>
class sharded_communicator {
  // An any_communicator shows only at run time if it joins nodes or shards.
  template <class C>
  static constexpr bool is_of_any_type = requires(const C& c) {
    c.joins_nodes();
  };
  static_assert(
      is_of_any_type<Exchange> || !requires(const Exchange& c) { c.local_size(); },
      "slamb: the Exchange of a sharded_communicator joins single ranks, not nodes: give it the communicator of "
      "all ranks that hold the same shard");
  static_assert(
      (is_of_any_type<Exchange> || !requires(const Exchange& c) { c.shard_size(); }) &&
          (is_of_any_type<Shards> || !requires(const Shards& c) { c.shard_size(); }),
      "slamb: a sharded_communicator cannot be a part of another one; give Shards the ranks of all dimensions "
      "along which tensors are cut");

 public:
  /// @param exchange  joins the ranks of all shard groups that hold the same shard, in the order of the groups
  /// @param shards    joins the ranks of this shard group, in the order of shards
  /// @throws std::invalid_argument if one of them is an any_communicator of nodes or shards, or `shards` is one without all_gather
  sharded_communicator(Exchange exchange, Shards shards) : exchange_(std::move(exchange)), shards_(std::move(shards)) {
    require_single(exchange_, "Exchange");
    require_single(shards_, "Shards");
    if (!detail::says_it_has(shards_, collective::all_gather))
      throw std::invalid_argument(
          "slamb: the Shards of a sharded_communicator need all_gather of bytes; the one in the any_communicator has "
          "none");
  }
  /// A model without replicas.
  explicit sharded_communicator(Shards shards) requires std::is_same_v<Exchange, self_communicator>
      : sharded_communicator(Exchange(), std::move(shards)) {}

  int rank() const { return static_cast<int>(exchange_.rank()); }      ///< of the shard group
  int size() const { return static_cast<int>(exchange_.size()); }      ///< N, the number of shard groups
  int shard_rank() const { return static_cast<int>(shards_.rank()); }  ///< in the shard group
  int shard_size() const { return static_cast<int>(shards_.size()); }  ///< S

  Exchange& exchange() noexcept { return exchange_; }
  const Exchange& exchange() const noexcept { return exchange_; }
  Shards& shards() noexcept { return shards_; }
  const Shards& shards() const noexcept { return shards_; }

  /// `values` [n] become their sum over the shard group.
  template <class Stream>
  requires capability::has_all_reduce_sum<Shards, float, Stream>
  void all_reduce_in_shards(std::span<float> values, Stream stream) {
    if (shard_size() > 1) in_shards([&] { shards_.all_reduce_sum(values, stream); });
  }

  /// `all` [shard_size()·n] becomes `mine` [n] of each rank of the shard group, in the order of shards.
  template <class Stream>
  requires capability::has_all_gather<Shards, std::byte, Stream>
  void all_gather_in_shards(std::span<const std::byte> mine, std::span<std::byte> all, Stream stream) {
    in_shards([&] { shards_.all_gather(mine, all, stream); });
  }

  /// `values` [n] become their sum over the ranks that hold the same shard.
  template <class T, class Stream>
  requires capability::has_all_reduce_sum<Exchange, T, Stream>
  void all_reduce_sum(std::span<T> values, Stream stream) {
    between_replicas([&] { exchange_.all_reduce_sum(values, stream); });
  }

  /// `values` [n] become those of rank `root`.
  template <class T, class Stream>
  requires capability::has_broadcast<Exchange, T, Stream>
  void broadcast(std::span<T> values, int root, Stream stream) {
    between_replicas([&] { exchange_.broadcast(values, root, stream); });
  }

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order.
  template <class T, class Stream>
  requires capability::has_all_gather<Exchange, T, Stream>
  void all_gather(std::span<const T> mine, std::span<T> all, Stream stream) {
    between_replicas([&] { exchange_.all_gather(mine, all, stream); });
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n].
  template <class T, class Stream>
  requires capability::has_all_to_all<Exchange, T, Stream>
  void all_to_all(std::span<const T> send, std::span<T> receive, Stream stream) {
    between_replicas([&] { exchange_.all_to_all(send, receive, stream); });
  }

  /// True if the collective exists. For an `Exchange` that knows its collectives only at run time.
  bool has(collective kind) const { return detail::says_it_has(exchange_, kind); }

  /// Bytes of a value that all_reduce_sum sends.
  std::uint64_t value_bytes() const noexcept requires(requires(const Exchange& c) { c.value_bytes(); }) {
    return exchange_.value_bytes();
  }

  /// Checks if a peer of this rank has reported a failure. Does not wait.
  /// @throws the exceptions of `Exchange` and `Shards`
  void check() requires(detail::has_check<Exchange> || detail::has_check<Shards>) {
    if constexpr (detail::has_check<Shards>) in_shards([&] { shards_.check(); });
    if constexpr (detail::has_check<Exchange>) between_replicas([&] { exchange_.check(); });
  }

  /// Waits until all work on `stream` is done.
  /// @throws the exceptions of `Exchange` and `Shards` if peers do not come
  template <class Stream>
  requires(detail::has_wait<Exchange, Stream> || detail::has_wait<Shards, Stream>) void wait(Stream stream) {
    if constexpr (detail::has_wait<Exchange, Stream>) between_replicas([&] { exchange_.wait(stream); });
    if constexpr (detail::has_wait<Shards, Stream>) in_shards([&] { shards_.wait(stream); });
  }

  /// Both communicators fail with `reason`, and report it to the peers that can be reached. For a rank that cannot go on.
  void abort(const std::string& reason) requires(detail::has_abort<Exchange> || detail::has_abort<Shards>) {
    if constexpr (detail::has_abort<Shards>) shards_.abort(reason);
    if constexpr (detail::has_abort<Exchange>) exchange_.abort(reason);
  }

 private:
  template <class C>
  static void require_single([[maybe_unused]] const C& c, [[maybe_unused]] const char* what) {
    if constexpr (is_of_any_type<C>)
      if (c.local_size() > 1 || c.shard_size() > 1)
        throw std::invalid_argument(std::string("slamb: the ") + what +
                                    " of a sharded_communicator is an any_communicator that joins nodes or shards; it "
                                    "must join single ranks");
  }

  template <class Call>
  void in_shards(const Call& call) {
    detail::call_or_abort(
        *this, [this] { return "in shard group " + std::to_string(rank()) + ": "; }, call);
  }
  template <class Call>
  void between_replicas(const Call& call) {
    detail::call_or_abort(
        *this, [this] { return "between the ranks of shard " + std::to_string(shard_rank()) + ": "; }, call);
  }

  Exchange exchange_;
  Shards shards_;
};

template <class Shards>
sharded_communicator(Shards) -> sharded_communicator<self_communicator, Shards>;

}  // namespace slamb
