// A Communicator that counts its collectives, and loses its own process before a planned one.
#pragma once

#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <slamb/communicator/any_communicator.hpp>
#include <span>
#include <string>
#include <utility>

namespace rank_tests {

/// Nanoseconds of a clock that all processes of the machine share.
inline std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// A way to lose a process. One that is stopped keeps its connections, but answers nothing.
enum class accident { killed, exits, stopped };
inline constexpr accident all_accidents[] = {accident::killed, accident::exits, accident::stopped};
inline constexpr int status_of_exit = 9;

inline const char* name_of(accident what) {
  switch (what) {
    case accident::killed:
      return "is killed";
    case accident::exits:
      return "exits";
    case accident::stopped:
      return "is stopped";
  }
  return "";
}

/// It happens to the calling process. @param when  becomes the time before it
inline void happen(accident what, std::int64_t& when) {
  when = now();
  switch (what) {
    case accident::killed:
      raise(SIGKILL);
      break;
    case accident::exits:
      _exit(status_of_exit);
    case accident::stopped:
      raise(SIGSTOP);
      break;
  }
}

/// The collectives that a rank has called, and the accident that happens to it before one of them.
struct collective_log {
  std::uint64_t count = 0;
  std::uint64_t accident_at = 0;  ///< its number, from 1; 0: none
  accident what = accident::killed;
  std::int64_t* when = nullptr;  ///< in shared memory
};

/// Calls a Communicator, which several optimizers may use one after another.
template <class Stream>
class accident_communicator {
 public:
  using held_type = slamb::any_communicator<Stream>;

  accident_communicator(std::shared_ptr<held_type> held, std::shared_ptr<collective_log> log)
      : held_(std::move(held)), log_(std::move(log)) {}

  int rank() const { return held_->rank(); }
  int size() const { return held_->size(); }

  void all_reduce_sum(std::span<float> values, Stream stream) {
    count();
    held_->all_reduce_sum(values, stream);
  }
  void broadcast(std::span<std::byte> values, int root, Stream stream) {
    count();
    held_->broadcast(values, root, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Stream stream) {
    count();
    held_->all_gather(mine, all, stream);
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, Stream stream) {
    count();
    held_->all_to_all(send, receive, stream);
  }

  void wait(Stream stream) { held_->wait(stream); }
  void check() { held_->check(); }
  void abort(const std::string& reason) { held_->abort(reason); }

 private:
  void count() {
    ++log_->count;
    if (log_->count == log_->accident_at) happen(log_->what, *log_->when);
  }

  std::shared_ptr<held_type> held_;
  std::shared_ptr<collective_log> log_;
};

}  // namespace rank_tests
