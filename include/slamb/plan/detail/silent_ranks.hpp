// The ranks of a plan: a Communicator that sends nothing. All ranks are equal to this one, which is rank 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slamb/core/concepts.hpp"
#include "slamb/detail/ranks/agreement.hpp"

namespace slamb::detail {

class silent_ranks {
 public:
  /// @param value_bytes  bytes of a value that is summed, for counts of traffic
  silent_ranks(int ranks, std::uint64_t value_bytes) noexcept : ranks_(ranks), value_bytes_(value_bytes) {}

  static int rank() noexcept { return 0; }
  int size() const noexcept { return ranks_; }
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

 private:
  int ranks_;
  std::uint64_t value_bytes_;
};

}  // namespace slamb::detail
