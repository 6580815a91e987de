// The collectives of a Communicator of unknown type, on streams of unknown type: the only Communicator that recipes call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>

#include "slamb/core/config.hpp"
#include "slamb/core/detail/any_stream.hpp"
#include "slamb/core/detail/stream_waiter.hpp"
#include "slamb/core/statistics.hpp"

namespace slamb::detail {

/// The collectives that the library's recipes call.
class collectives : public stream_waiter {
 public:
  collectives() = default;
  collectives(const collectives&) = delete;
  collectives& operator=(const collectives&) = delete;
  virtual ~collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void all_reduce_sum(std::span<float> values, any_stream stream) = 0;
  virtual void broadcast(std::span<std::byte> values, int root, any_stream stream) = 0;
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, any_stream stream) = 0;
  virtual void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, any_stream stream) = 0;
  virtual bool has(collective kind) const = 0;
  virtual bool joins_nodes() const noexcept = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual void all_reduce_in_node(std::span<float> values, any_stream stream) = 0;
  virtual int shard_rank() const { return 0; }
  virtual int shard_size() const { return 1; }
  virtual void all_reduce_in_shards(std::span<float> /*values*/, any_stream /*stream*/) {}
  virtual void all_gather_in_shards(std::span<const std::byte> /*mine*/, std::span<std::byte> /*all*/,
                                    any_stream /*stream*/) {}
  virtual void check() = 0;
  virtual void abort(const std::string& reason) = 0;
  /// Bytes of a value that all_reduce_sum sends.
  virtual std::uint64_t value_bytes() const noexcept { return sizeof(float); }
  virtual const std::type_info& type() const noexcept = 0;
  virtual void* held() noexcept = 0;
};

/// The ranks of one optimizer. Records the traffic of the collectives that returned, as `counting_communicator` does.
class counted_collectives final : public stream_waiter {
 public:
  explicit counted_collectives(std::shared_ptr<collectives> held) noexcept : held_(std::move(held)) {}

  int rank() const { return held_->rank(); }
  int size() const { return held_->size(); }
  int local_rank() const { return held_->local_rank(); }
  int local_size() const { return held_->local_size(); }

  void all_reduce_sum(std::span<float> values, any_stream stream);
  /// The first `header` values are not payload: ranks compare them, and they are counted separately.
  void all_reduce_sum_with_header(std::span<float> values, std::size_t header, any_stream stream);
  void broadcast(std::span<std::byte> values, int root, any_stream stream);
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, any_stream stream);
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, any_stream stream);
  void all_reduce_in_node(std::span<float> values, any_stream stream) { held_->all_reduce_in_node(values, stream); }
  int shard_rank() const { return held_->shard_rank(); }
  int shard_size() const { return held_->shard_size(); }
  void all_gather_in_shards(std::span<const std::byte> mine, std::span<std::byte> all, any_stream stream);
  void all_reduce_in_shards(std::span<float> values, any_stream stream);
  /// The same for ranks that compare themselves, which is counted separately.
  void compare_in_shards(std::span<const std::byte> mine, std::span<std::byte> all, any_stream stream);
  void wait(any_stream stream) const override { held_->wait(stream); }

  /// Traffic of this rank since construction.
  const traffic_counts& counts() const noexcept { return counts_; }
  /// Traffic of headers, and of comparisons in the shard group; `rounds` counts the collectives that had no payload.
  const traffic& comparisons() const noexcept { return comparisons_; }
  /// Traffic within the shard group.
  const traffic& in_shards() const noexcept { return in_shards_; }
  /// The collectives, uncounted.
  collectives& wrapped() const noexcept { return *held_; }

 private:
  std::shared_ptr<collectives> held_;
  traffic_counts counts_{};
  traffic comparisons_{};
  traffic in_shards_{};
};

}  // namespace slamb::detail

#if !defined(SLAMB_SEPARATE_COMPILATION)
#include "slamb/impl/core/detail/collectives.ipp"
#endif
