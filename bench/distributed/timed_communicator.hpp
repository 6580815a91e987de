// A decorator that adds up the time spent in the collectives of another Communicator.
#pragma once

#include <chrono>
#include <span>
#include <utility>

#include "slamb/core/concepts.hpp"

namespace bench::distributed {

/// Seconds spent in collectives, including waits for peers.
struct exchange_clock {
  double seconds = 0.0;
};

/// Forwards every collective that `Base` has, for host memory. `clock` must outlive it.
template <slamb::communicator Base>
class timed_communicator {
 public:
  timed_communicator(Base base, exchange_clock& clock) : base_(std::move(base)), clock_(&clock) {}

  int rank() const { return base_.rank(); }
  int size() const { return base_.size(); }

  template <class T>
  requires slamb::capability::has_all_reduce_sum<Base, T>
  void all_reduce_sum(std::span<T> values, slamb::host_stream stream) {
    const timer running(*clock_);
    base_.all_reduce_sum(values, stream);
  }

  template <class T>
  requires slamb::capability::has_broadcast<Base, T>
  void broadcast(std::span<T> values, int root, slamb::host_stream stream) {
    const timer running(*clock_);
    base_.broadcast(values, root, stream);
  }

  template <class T>
  requires slamb::capability::has_all_gather<Base, T>
  void all_gather(std::span<const T> mine, std::span<T> all, slamb::host_stream stream) {
    const timer running(*clock_);
    base_.all_gather(mine, all, stream);
  }

  template <class T>
  requires slamb::capability::has_all_to_all<Base, T>
  void all_to_all(std::span<const T> send, std::span<T> receive, slamb::host_stream stream) {
    const timer running(*clock_);
    base_.all_to_all(send, receive, stream);
  }

 private:
  class timer {
   public:
    explicit timer(exchange_clock& clock) : clock_(clock) {}
    timer(const timer&) = delete;
    timer& operator=(const timer&) = delete;
    ~timer() { clock_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

   private:
    exchange_clock& clock_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  Base base_;
  exchange_clock* clock_;
};

}  // namespace bench::distributed
