// The memory of a rank's parameters and gradients in replays on the device.
#pragma once

#include <deque>
#include <slamb/slamb.hpp>
#include <span>
#include <utility>
#include <vector>

#include "../support/rank_memory.hpp"
#include "poisoned.hpp"

/// Memory of the current GPU, and a stream for each rank.
template <>
class test_support::rank_memory<slamb::cuda_backend> {
 public:
  using communicator = slamb::cuda_thread_communicator;

  template <class F>
  static void run(int world, F body) {
    slamb::run_ranks(world, [&](slamb::thread_communicator host) { body(communicator(std::move(host))); });
  }
  slamb::cuda_backend backend() const { return {.stream = stream_}; }

  template <class T>
  std::span<T> hold(std::span<const T> values) {
    held_.push_back(device_tests::poisoned(values.size_bytes()));
    const std::span<T> copy(reinterpret_cast<T*>(held_.back().data().get()), values.size());
    write(values, copy);
    return copy;
  }
  template <class T>
  void write(std::span<const T> from, std::span<T> to) const {
    device_tests::upload(from, to.data(), stream_);
  }
  template <class T>
  std::vector<T> read(std::span<T> values) const {
    return device_tests::downloaded(static_cast<const T*>(values.data()), values.size(), stream_);
  }

 private:
  device_tests::stream stream_;
  std::deque<thrust::device_vector<std::byte>> held_;
};
