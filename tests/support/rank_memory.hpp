// The memory of one rank's parameters and gradients, and the backend that trains it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <slamb/backend/precision.hpp>
#include <slamb/communicator/run_ranks.hpp>
#include <slamb/communicator/thread_communicator.hpp>
#include <span>
#include <vector>

namespace test_support {

/// The memory of one rank in the backend's memory space: here the host's. Other backends specialize it.
template <class Backend>
class rank_memory {
 public:
  using communicator = slamb::thread_communicator;

  /// Calls body(communicator) on each of `world` ranks whose memory is in this process.
  template <class F>
  static void run(int world, F body) {
    slamb::run_ranks(world, body);
  }
  static Backend backend() {
    if constexpr (requires(Backend b) { b.threads; })
      return {.threads = 1};
    else
      return {};
  }

  /// A copy that lives as long as this object.
  template <class T>
  std::span<T> hold(std::span<const T> values) {
    held_.emplace_back(values.size_bytes());
    if (!values.empty()) std::memcpy(held_.back().data(), values.data(), values.size_bytes());
    return {reinterpret_cast<T*>(held_.back().data()), values.size()};
  }
  template <class T>
  static void write(std::span<const T> from, std::span<T> to) {
    std::ranges::copy(from, to.begin());
  }
  template <class T>
  static std::vector<T> read(std::span<T> values) {
    return {values.begin(), values.end()};
  }

 private:
  std::vector<std::vector<std::byte>> held_;
};

/// Of a backend with types: that of the backend that does the work.
template <class Backend, class Rounding>
class rank_memory<slamb::precision::mixed<Backend, Rounding>> : public rank_memory<Backend> {
 public:
  slamb::precision::mixed<Backend, Rounding> backend() const { return {rank_memory<Backend>::backend()}; }
};

}  // namespace test_support
