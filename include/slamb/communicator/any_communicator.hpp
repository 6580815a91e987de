// A Communicator of any type behind one type, so that code that takes a Communicator is compiled once for all of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "slamb/communicator/self_communicator.hpp"
#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/collectives.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb {

namespace detail {

/// Forwards the collectives to a C, which it owns.
template <class C, class Stream>
class collectives_of final : public collectives {
 public:
  static_assert(
      !requires(const C& c) { c.local_size(); } || capability::has_all_reduce_in_node<C, Stream>,
      "slamb: a Communicator with local_size() must have local_rank() too, and all_reduce_in_node(std::span<float>, "
      "stream) for the Backend's stream; otherwise the ranks of a node would diverge");
  static_assert(
      !requires(const C& c) { c.shard_size(); } || capability::has_shards<C, Stream>,
      "slamb: a Communicator with shard_size() must have shard_rank() too, all_reduce_in_shards(std::span<float>, "
      "stream) and all_gather_in_shards(std::span<const std::byte>, std::span<std::byte>, stream) for the Backend's "
      "stream; for sharded_communicator<Exchange, Shards>, Shards needs all_reduce_sum of floats and all_gather of "
      "std::byte");

  explicit collectives_of(C held) : held_(std::move(held)) {}
  ~collectives_of() noexcept override = default;

  int rank() const override { return static_cast<int>(held_.rank()); }
  int size() const override { return static_cast<int>(held_.size()); }

  void all_reduce_sum(std::span<float> values, any_stream stream) override {
    held_.all_reduce_sum(values, stream.as<Stream>());
  }
  void broadcast([[maybe_unused]] std::span<std::byte> values, [[maybe_unused]] int root,
                 [[maybe_unused]] any_stream stream) override {
    if constexpr (can_broadcast)
      held_.broadcast(values, root, stream.as<Stream>());
    else
      throw_missing("broadcast(std::span<std::byte>, root, stream)");
  }
  void all_gather([[maybe_unused]] std::span<const std::byte> mine, [[maybe_unused]] std::span<std::byte> all,
                  [[maybe_unused]] any_stream stream) override {
    if constexpr (can_gather)
      held_.all_gather(mine, all, stream.as<Stream>());
    else
      throw_missing("all_gather(std::span<const std::byte>, std::span<std::byte>, stream)");
  }
  void all_to_all([[maybe_unused]] std::span<const std::byte> send, [[maybe_unused]] std::span<std::byte> receive,
                  [[maybe_unused]] any_stream stream) override {
    if constexpr (can_exchange)
      held_.all_to_all(send, receive, stream.as<Stream>());
    else
      throw_missing("all_to_all(std::span<const std::byte>, std::span<std::byte>, stream)");
  }
  bool has(collective kind) const override { return can(kind) && says_it_has(held_, kind); }

  bool joins_nodes() const noexcept override { return has_nodes; }
  int local_rank() const override {
    if constexpr (has_nodes)
      return static_cast<int>(held_.local_rank());
    else
      return 0;
  }
  int local_size() const override {
    if constexpr (has_nodes)
      return static_cast<int>(held_.local_size());
    else
      return 1;
  }
  void all_reduce_in_node([[maybe_unused]] std::span<float> values, [[maybe_unused]] any_stream stream) override {
    if constexpr (has_nodes) held_.all_reduce_in_node(values, stream.as<Stream>());
  }

  int shard_rank() const override {
    if constexpr (has_shards)
      return static_cast<int>(held_.shard_rank());
    else
      return 0;
  }
  int shard_size() const override {
    if constexpr (has_shards)
      return static_cast<int>(held_.shard_size());
    else
      return 1;
  }
  void all_reduce_in_shards([[maybe_unused]] std::span<float> values, [[maybe_unused]] any_stream stream) override {
    if constexpr (has_shards) held_.all_reduce_in_shards(values, stream.as<Stream>());
  }
  void all_gather_in_shards([[maybe_unused]] std::span<const std::byte> mine, [[maybe_unused]] std::span<std::byte> all,
                            [[maybe_unused]] any_stream stream) override {
    if constexpr (has_shards) held_.all_gather_in_shards(mine, all, stream.as<Stream>());
  }

  void wait([[maybe_unused]] any_stream stream) const override {
    if constexpr (has_wait<C, Stream>)
      const_cast<C&>(held_).wait(stream.as<Stream>());  // optimizers wait in const functions
  }
  void check() override {
    if constexpr (has_check<C>) held_.check();
  }
  void abort([[maybe_unused]] const std::string& reason) override {
    if constexpr (has_abort<C>) held_.abort(reason);
  }

  std::uint64_t value_bytes() const noexcept override {
    if constexpr (requires { held_.value_bytes(); })
      return held_.value_bytes();
    else
      return sizeof(float);
  }

  const std::type_info& type() const noexcept override { return typeid(C); }
  void* held() noexcept override { return &held_; }

 private:
  static constexpr bool can(collective kind) noexcept {
    switch (kind) {
      case collective::all_reduce:
        return true;
      case collective::all_gather:
        return can_gather;
      case collective::all_to_all:
        return can_exchange;
      case collective::broadcast:
        return can_broadcast;
    }
    return false;
  }

  static constexpr bool can_broadcast = capability::has_broadcast<C, std::byte, Stream>;
  static constexpr bool can_gather = capability::has_all_gather<C, std::byte, Stream>;
  static constexpr bool can_exchange = capability::has_all_to_all<C, std::byte, Stream>;
  static constexpr bool has_nodes = capability::has_all_reduce_in_node<C, Stream>;
  static constexpr bool has_shards = capability::has_shards<C, Stream>;

  [[noreturn]] static void throw_missing(const char* what) {
    throw std::logic_error(std::string("slamb: the Communicator in an any_communicator has no ") + what);
  }

  C held_;
};

}  // namespace detail

/// Owns a Communicator of any type, and is a Communicator itself. A recipe over it is one type, whatever Communicator it holds;
/// code that makes or stores such recipes is compiled once. It has the collectives that recipes call: sums of floats, and the
/// other collectives of bytes.
///
/// The held Communicator stays at one address. It may lack a collective: a recipe that needs the collective then throws
/// std::invalid_argument at construction; with the Communicator's own type it would not compile. `wait`, `check` and `abort` do
/// nothing if the held Communicator does not have them. If its ranks are not nodes, each rank counts as a node of one rank.
///
/// After a move, the source holds nothing: it can be assigned to or destroyed; everything else throws std::logic_error.
///
/// *Cost*: a virtual call per collective; one allocation at construction.
/// *Stream*, *Determinism* and the exceptions of collectives: those of the held Communicator.
template <class Stream = host_stream>
class any_communicator {
 public:
  /// Holds `communicator`. Explicit, so that no overload converts a communicator by accident.
  template <class C>
  requires(!std::same_as<C, any_communicator> &&
           capability::has_all_reduce_sum<C, float, Stream>) explicit any_communicator(C communicator)
      : held_(std::make_shared<detail::collectives_of<C, Stream>>(std::move(communicator))) {}

  any_communicator(any_communicator&&) noexcept = default;
  any_communicator& operator=(any_communicator&&) noexcept = default;
  any_communicator(const any_communicator&) = delete;
  any_communicator& operator=(const any_communicator&) = delete;
  ~any_communicator() = default;

  int rank() const { return held().rank(); }
  int size() const { return held().size(); }

  /// `values` [n] become their sum over ranks.
  void all_reduce_sum(std::span<float> values, Stream stream) { held().all_reduce_sum(values, stream); }
  /// `values` [n] become those of rank `root`.
  void broadcast(std::span<std::byte> values, int root, Stream stream) { held().broadcast(values, root, stream); }
  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Stream stream) {
    held().all_gather(mine, all, stream);
  }
  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n].
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, Stream stream) {
    held().all_to_all(send, receive, stream);
  }
  /// True if the held Communicator has this collective.
  bool has(collective kind) const { return held().has(kind); }

  /// True if its ranks are nodes, as in `hierarchical_communicator`. Otherwise each rank is a node of one rank.
  bool joins_nodes() const { return held().joins_nodes(); }
  int local_rank() const { return held().local_rank(); }
  int local_size() const { return held().local_size(); }
  /// `values` [n] become their sum over the ranks of the node.
  void all_reduce_in_node(std::span<float> values, Stream stream) { held().all_reduce_in_node(values, stream); }

  /// The place of this rank in its shard group, as in `sharded_communicator`; otherwise rank 0 of 1.
  int shard_rank() const { return held().shard_rank(); }
  int shard_size() const { return held().shard_size(); }
  /// `values` [n] become their sum over the shard group.
  void all_reduce_in_shards(std::span<float> values, Stream stream) { held().all_reduce_in_shards(values, stream); }
  /// `all` [shard_size()·n] becomes `mine` [n] of each rank of the shard group, in the order of shards.
  void all_gather_in_shards(std::span<const std::byte> mine, std::span<std::byte> all, Stream stream) {
    held().all_gather_in_shards(mine, all, stream);
  }

  /// Waits until all work on `stream` is done, if the Communicator can detect lost peers meanwhile. Const, so that const member
  /// functions of an optimizer can wait.
  void wait(Stream stream) const { held().wait(stream); }
  /// Checks whether a peer has reported a failure. Does not wait.
  void check() { held().check(); }
  /// Fails with `reason`, and reports it to the peers.
  void abort(const std::string& reason) { held().abort(reason); }

  /// For the library. @{
  operator const detail::stream_waiter&() const { return held(); }  // NOLINT(google-explicit-constructor)
  std::shared_ptr<detail::collectives> share() const {
    static_cast<void>(held());  // throws if it is empty
    return held_;
  }
  /// @}

  /// The held Communicator.
  /// @throws std::bad_cast if its type is not C
  template <class C>
  C& get() {
    if constexpr (std::same_as<C, any_communicator>)
      return *this;
    else
      return held_as<C>();
  }
  template <class C>
  const C& get() const {
    if constexpr (std::same_as<C, any_communicator>)
      return *this;
    else
      return held_as<C>();
  }

 private:
  template <class C>
  C& held_as() const {
    if (held().type() != typeid(C)) throw std::bad_cast();
    return *static_cast<C*>(held().held());
  }
  detail::collectives& held() const {
    if (held_ == nullptr)
      throw std::logic_error(
          "slamb: an any_communicator was used after it was moved from; each optimizer needs its own Communicator");
    return *held_;
  }

  std::shared_ptr<detail::collectives> held_;  // shared with the core of the optimizer that owns this object
};

static_assert(capability::has_all_reduce_sum<any_communicator<>, float>);
static_assert(capability::has_all_gather<any_communicator<>, std::byte>);
static_assert(capability::has_all_to_all<any_communicator<>, std::byte>);
static_assert(capability::has_broadcast<any_communicator<>, std::byte>);

}  // namespace slamb
