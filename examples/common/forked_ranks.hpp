// Ranks as processes on one machine, forked from one program. If one fails, the program ends all. On a cluster mpirun, srun or
// torchrun starts the ranks, and also replaces the mailbox.
#pragma once

#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace programs {

/// Carries one value from rank 0 to each other rank. Must be made before the ranks are forked.
template <class T>
class mailbox {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= PIPE_BUF,
                "a value must be trivially copyable and fit one write to a pipe");

 public:
  /// @throws std::runtime_error if the pipes cannot be made
  explicit mailbox(int ranks) : pipes_(static_cast<std::size_t>(ranks)) {
    for (auto& ends : pipes_)
      if (pipe(ends.data()) != 0) fail("pipe");
  }
  mailbox(mailbox&&) = delete;
  ~mailbox() {
    for (const auto& ends : pipes_) close(ends[0]), close(ends[1]);
  }

  /// Rank 0 calls `make` and sends the result to the other ranks, which wait for it. To be called once.
  ///
  /// @throws the exceptions of `make`; std::runtime_error if a pipe fails
  template <class Make>
  T share(int rank, const Make& make) const {
    if (rank != 0) return receive(pipes_[static_cast<std::size_t>(rank)][0]);
    const T value = make();
    for (std::size_t peer = 1; peer < pipes_.size(); ++peer)
      if (write(pipes_[peer][1], &value, sizeof value) != sizeof value) fail("write");
    return value;
  }

 private:
  [[noreturn]] static void fail(const char* call) {
    throw std::runtime_error(std::string(call) + " failed: " + std::strerror(errno));
  }

  static T receive(int from) {
    T value;
    ssize_t count = -1;
    do count = read(from, &value, sizeof value);
    while (count < 0 && errno == EINTR);
    if (count != sizeof value) fail("read");
    return value;
  }

  std::vector<std::array<int, 2>> pipes_;  // [ranks][read, write]; rank 0's is not used
};

namespace detail {

/// Runs `body(rank)` in a forked process. Returns its process id, or −1 if fork failed.
template <class Body>
pid_t start(int rank, const Body& body) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  int status = 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a rank must not outlive the program that started it
  if (getppid() == parent) {
    try {
      status = body(rank);
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "rank %d: %s\n", rank, failure.what());
    }
  }
  if (std::fflush(nullptr) != 0 && status == 0) status = 1;
  _exit(status);
}

/// The exit status of a process from the status of waitpid. A signal counts as 1, and is printed.
inline int exit_status(int waited, std::size_t rank) {
  if (WIFEXITED(waited)) return WEXITSTATUS(waited);
  std::fprintf(stderr, "rank %zu: ended by signal %d (%s)\n", rank, WTERMSIG(waited), strsignal(WTERMSIG(waited)));
  return 1;
}

}  // namespace detail

/// Runs `body(rank)`, which returns an exit status, for `count` ranks, each in its own process, and waits for them. An
/// exception of `body` is printed, and counts as exit status 1. The caller must not have used CUDA or NCCL, because they do not
/// survive a fork.
///
/// As soon as a rank fails, the others are killed: they may be waiting for it on the device, where nothing wakes them.
///
/// @param started  called once all ranks have been started: closes the caller's copies of their resources
/// @return 0 if all ranks returned 0, else the status of the first that did not
template <class Body, class Started>
int run_forked(int count, const Body& body, const Started& started) {
  std::fflush(nullptr);  // otherwise each rank would print it again
  std::vector<pid_t> ranks(static_cast<std::size_t>(count), -1);
  int status = 0;
  const auto fail = [&](int with) {
    if (status == 0) status = with;
    for (const pid_t rank : ranks)
      if (rank > 0) kill(rank, SIGKILL);
  };
  for (std::size_t rank = 0; rank < ranks.size() && status == 0; ++rank) {
    ranks[rank] = detail::start(static_cast<int>(rank), body);
    if (ranks[rank] < 0) {
      std::fprintf(stderr, "rank %zu: fork failed: %s\n", rank, std::strerror(errno));
      fail(1);
    }
  }
  started();
  for (;;) {
    int waited = 0;
    const pid_t ended = wait(&waited);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) return status;  // no process is left
    const auto rank = std::find(ranks.begin(), ranks.end(), ended);
    if (rank == ranks.end()) continue;
    *rank = -1;
    if (waited != 0 && status == 0) fail(detail::exit_status(waited, static_cast<std::size_t>(rank - ranks.begin())));
  }
}

template <class Body>
int run_forked(int count, const Body& body) {
  return run_forked(count, body, [] {});
}

}  // namespace programs
