// The calls of the device in a step, and the time of each. Plain C++: needs no nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "timed_event.hpp"
#include "watched_device.hpp"

namespace bench {

/// A Watcher of watched_device that, while it is on, records an event before and after each call.
class launch_timer {
 public:
  explicit launch_timer(cudaStream_t stream) : stream_(stream) {}

  template <class Body>
  void run(const device_call& call, const Body& body) {
    if (!is_on_) return body();
    const call_under_way& own = calls_.emplace_back(call_under_way{call, {}, {}});
    own.begin.record(stream_);
    body();
    own.end.record(stream_);
  }

  /// Calls body(), and returns its device calls in order. Waits.
  template <class Body>
  std::vector<timed_call> times_of(const Body& body) {
    calls_.clear();
    is_on_ = true;
    body();
    is_on_ = false;
    std::vector<timed_call> all;
    for (const call_under_way& each : calls_) all.push_back({each.call, each.end.seconds_since(each.begin)});
    return all;
  }

 private:
  struct call_under_way {
    device_call call;
    timed_event begin;
    timed_event end;
  };

  cudaStream_t stream_;
  bool is_on_ = false;
  std::vector<call_under_way> calls_;
};

}  // namespace bench
