// Runs tasks concurrently with the stream of an optimizer: on the host, in a thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "slamb/core/concepts.hpp"
#include "slamb/core/detail/float_modes.hpp"

namespace slamb::detail {

/// Runs tasks, `task(stream)`, one after another. This template runs them on the stream itself. Specialisations for the streams
/// of a backend run them concurrently with the stream.
template <class Stream, class Task>
class side_stream {
 public:
  side_stream(Stream stream, std::size_t /*most*/) : stream_(stream) {}
  void start(const Task& task) { task(stream_); }
  static void join() noexcept {}

 private:
  Stream stream_;
};

/// Runs tasks on its own thread, one at a time. So collectives of tasks are called from a thread that the caller did not start.
/// It computes in the float_modes of the caller. All tasks end before `join` returns.
template <class Task>
class side_stream<host_stream, Task> {
 public:
  /// @param most  tasks between two calls of `join`
  /// @throws std::system_error if no thread can be started
  side_stream(host_stream /*beside*/, std::size_t most) {
    tasks_.reserve(most);
    thread_ = std::thread([this] { serve(); });
  }
  side_stream(const side_stream&) = delete;
  side_stream& operator=(const side_stream&) = delete;
  /// Waits for the running task. Drops the tasks after it.
  ~side_stream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  /// Runs the task after the tasks before it have returned, but not if one of them has thrown.
  void start(const Task& task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back({task, float_modes::current()});
    }
    wake_.notify_all();
  }

  /// Waits until all tasks have ended.
  /// @throws the exception of the first task that has failed
  void join() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return done_ == tasks_.size(); });
    tasks_.clear();
    done_ = 0;
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  struct started_task {
    Task task;
    float_modes modes;
  };

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ends_ || done_ < tasks_.size(); });
      if (ends_) return;
      const started_task next = tasks_[done_];
      if (failure_ == nullptr) {
        lock.unlock();
        if (next.modes != float_modes::current()) next.modes.apply();
        std::exception_ptr thrown;
        try {
          next.task(host_stream{});
        } catch (...) {
          thrown = std::current_exception();
        }
        lock.lock();
        failure_ = thrown;
      }
      ++done_;
      wake_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<started_task> tasks_;
  std::size_t done_ = 0;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace slamb::detail
