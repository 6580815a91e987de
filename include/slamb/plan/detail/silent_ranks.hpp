// The ranks of a plan: a Communicator that sends nothing. All ranks are equal to this one, which is rank 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/pass/step_calls.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

class silent_ranks {
 public:
  /// @param value_bytes  bytes of a value that is summed, for counts of traffic
  silent_ranks(int ranks, std::uint64_t value_bytes, int shards = 1) noexcept
      : ranks_(ranks), shards_(shards), value_bytes_(value_bytes) {}

  static int rank() noexcept { return 0; }
  int size() const noexcept { return ranks_; }
  static int shard_rank() noexcept { return 0; }
  int shard_size() const noexcept { return shards_; }
  std::uint64_t value_bytes() const noexcept { return value_bytes_; }

  /// Sums the header that a step reads, and leaves the payload, which it does not.
  void all_reduce_sum(std::span<float> values, host_stream /*stream*/) const noexcept {
    for (float& value : values.first(std::min(values.size(), sum_header::floats))) value *= static_cast<float>(ranks_);
  }
  static void broadcast(std::span<std::byte> /*values*/, int /*root*/, host_stream /*stream*/) noexcept {}
  static void all_gather(std::span<const std::byte> /*mine*/, std::span<std::byte> /*all*/,
                         host_stream /*stream*/) noexcept {}
  static void all_to_all(std::span<const std::byte> /*send*/, std::span<std::byte> /*receive*/,
                         host_stream /*stream*/) noexcept {}

  static void all_reduce_in_shards(std::span<float> /*values*/, host_stream /*stream*/) noexcept {}
  /// Gathers the small messages that a step reads, and leaves the others.
  void all_gather_in_shards(std::span<const std::byte> mine, std::span<std::byte> all,
                            host_stream /*stream*/) const noexcept {
    constexpr std::size_t most = 1U << 16U;  // more than a message
    if (mine.size() > most) return;
    for (std::size_t i = 0; i < static_cast<std::size_t>(shards_); ++i)
      std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(i * mine.size()));
  }

 private:
  int ranks_;
  int shards_;
  std::uint64_t value_bytes_;
};

}  // namespace slamb::detail
