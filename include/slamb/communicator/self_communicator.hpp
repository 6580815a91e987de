// The Communicator of a single rank. Its comments specify what each collective does.
#pragma once

#include <span>

#include "slamb/core/concepts.hpp"

namespace slamb {

/// A single rank, whose collectives are identities. Works on every backend whose stream has a stream_copy.
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
  template <class T, class Stream>
  requires requires { sizeof(detail::stream_copy<Stream>); }
  void all_gather(std::span<const T> mine, std::span<T> all, Stream stream) {
    detail::stream_copy<Stream>::run(std::as_bytes(mine), std::as_writable_bytes(all), stream);
  }

  /// Chunk j of `receive` [size()·n] becomes this rank's chunk of rank j's `send` [size()·n].
  template <class T, class Stream>
  requires requires { sizeof(detail::stream_copy<Stream>); }
  void all_to_all(std::span<const T> send, std::span<T> receive, Stream stream) {
    detail::stream_copy<Stream>::run(std::as_bytes(send), std::as_writable_bytes(receive), stream);
  }
};

static_assert(capability::has_all_reduce_sum<self_communicator, float>);
static_assert(capability::has_all_gather<self_communicator, float>);
static_assert(capability::has_all_to_all<self_communicator, float>);
static_assert(capability::has_broadcast<self_communicator, float>);

}  // namespace slamb
