// Ranks that are threads of this process and take their steps on demand of another thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <slamb/communicator/run_ranks.hpp>
#include <slamb/optimizer/optimizer.hpp>
#include <thread>
#include <utility>

namespace many_ranks {

/// N optimizers, each constructed, called and destroyed on its own thread. Calls are made by one thread at a time.
class training_ranks {
 public:
  /// Makes the optimizer of the rank of this communicator.
  using maker = std::function<slamb::optimizer(slamb::thread_communicator)>;

  /// Starts the threads, and waits until all ranks have their optimizer.
  /// @throws the exception of the rank that failed first; std::invalid_argument if `size` is not in [1, 64]. No thread is left
  training_ranks(int size, maker make) : group_(size), make_(std::move(make)), driver_([this] { drive(); }) {
    try {
      wait_for_ranks();
    } catch (...) {
      driver_.join();
      throw;
    }
  }
  training_ranks(const training_ranks&) = delete;
  training_ranks& operator=(const training_ranks&) = delete;
  /// Waits until all threads have ended.
  ~training_ranks() {
    stop();
    driver_.join();
  }

  /// Every rank takes a step, from its tensors' gradients.
  /// @throws the exception of the rank that failed first. All ranks have ended then, and later calls throw the same
  void step(double learning_rate) {
    {
      const std::lock_guard lock(mutex_);
      learning_rate_ = learning_rate;
      ready_ = 0;
      ++wanted_steps_;
    }
    changed_.notify_all();
    wait_for_ranks();
  }

  /// Bytes that rank 0 has sent, as a bandwidth-optimal collective sends them.
  /// @throws as `step`, if a rank has failed
  std::uint64_t sent_bytes() {
    wait_for_ranks();  // they are idle; and still there
    return first_->statistics().traffic.total().sent_bytes;
  }

 private:
  void wait_for_ranks() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_ == group_.size() || have_ended_; });
    if (failure_) std::rethrow_exception(failure_);
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      must_stop_ = true;
    }
    changed_.notify_all();
  }

  /// The thread that starts those of the ranks, and joins them.
  void drive() {
    std::exception_ptr failure;
    try {
      slamb::run_ranks(group_, [this](slamb::thread_communicator ranks) { run_rank(std::move(ranks)); });
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      failure_ = failure;
      have_ended_ = true;
    }
    changed_.notify_all();
  }

  void run_rank(slamb::thread_communicator ranks) {
    try {
      take_steps(std::move(ranks));
    } catch (...) {
      stop();  // those that wait for the next step
      throw;
    }
  }

  void take_steps(slamb::thread_communicator ranks) {
    const bool is_first = ranks.rank() == 0;
    slamb::optimizer optimizer = make_(std::move(ranks));
    std::unique_lock lock(mutex_);
    if (is_first) first_ = &optimizer;
    for (std::uint64_t steps = 0;;) {
      if (++ready_ == group_.size()) changed_.notify_all();
      changed_.wait(lock, [&] { return wanted_steps_ != steps || must_stop_; });
      if (wanted_steps_ == steps) return;
      ++steps;
      const double learning_rate = learning_rate_;
      lock.unlock();
      optimizer.step(learning_rate);
      lock.lock();
    }
  }

  slamb::thread_group group_;
  const maker make_;
  std::mutex mutex_;  // guards what follows, but the calls of `first_`
  std::condition_variable changed_;
  double learning_rate_ = 0.0;
  std::uint64_t wanted_steps_ = 0;
  int ready_ = 0;            // ranks that have taken all wanted steps
  bool must_stop_ = false;   // ranks must end when they have taken all wanted steps
  bool have_ended_ = false;  // all ranks
  std::exception_ptr failure_;
  slamb::optimizer* first_ = nullptr;  // of rank 0
  std::thread driver_;                 // last, because it uses the others
};

}  // namespace many_ranks
