// The null Communicator: one rank alone. It doubles as the written contract of the collectives.
#pragma once

#include <algorithm>
#include <span>

#include "slamb/core/concepts.hpp"

namespace slamb {

/// One rank, whose collectives are identities. Works on every backend: it never touches memory of a device.
struct self_communicator {
  static constexpr int rank() noexcept { return 0; }
  static constexpr int size() noexcept { return 1; }

  /// `values` [n] become their sum over ranks.
  template <class T, class Stream>
  void all_reduce_sum(std::span<T> /*values*/, Stream /*stream*/) noexcept {}

  /// `values` [n] become those of rank `root`.
  template <class T, class Stream>
  void broadcast(std::span<T> /*values*/, int /*root*/, Stream /*stream*/) noexcept {}

  /// `all` [size()·n] becomes every rank's `mine` [n], in rank order.
  template <class T>
  void all_gather(std::span<const T> mine, std::span<T> all, host_stream /*stream*/) noexcept {
    std::copy(mine.begin(), mine.end(), all.begin());
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n].
  template <class T>
  void all_to_all(std::span<const T> send, std::span<T> receive, host_stream /*stream*/) noexcept {
    std::copy(send.begin(), send.end(), receive.begin());
  }
};

static_assert(has_all_reduce_sum<self_communicator, float>);
static_assert(has_all_gather<self_communicator, float>);
static_assert(has_all_to_all<self_communicator, float>);
static_assert(has_broadcast<self_communicator, float>);

}  // namespace slamb
