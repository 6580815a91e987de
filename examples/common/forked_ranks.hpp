// Ranks as processes of one machine: forked from one program, which ends all of them when one fails. On a cluster that
// is the affair of mpirun, srun or torchrun, and so is the mailbox.
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

/// Carries one value from rank 0 to each of the others. It is made before the ranks are forked.
template <class T>
class mailbox {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= PIPE_BUF, "a value that one write moves whole");

 public:
  /// @throws std::runtime_error without pipes for `ranks` ranks
  explicit mailbox(int ranks) : pipes_(static_cast<std::size_t>(ranks)) {
    for (auto& ends : pipes_)
      if (pipe(ends.data()) != 0) fail("pipe");
  }
  mailbox(mailbox&&) = delete;
  ~mailbox() {
    for (const auto& ends : pipes_) close(ends[0]), close(ends[1]);
  }

  /// Rank 0 calls `make` and hands out what it returns; the others wait for it. Once.
  ///
  /// @throws what `make` throws; std::runtime_error if a pipe fails
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

  std::vector<std::array<int, 2>> pipes_;  // [ranks][read, write]; that of rank 0 is not used
};

namespace detail {

/// Runs `body(rank)` in a forked process. Returns its id, or −1 if there is none.
template <class Body>
pid_t start(int rank, const Body& body) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  int status = 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a rank must not outlive the program that was started
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

/// The exit status of a process for what waitpid says of it; a signal counts as 1, and is told.
inline int exit_status(int waited, std::size_t rank) {
  if (WIFEXITED(waited)) return WEXITSTATUS(waited);
  std::fprintf(stderr, "rank %zu: ended by signal %d (%s)\n", rank, WTERMSIG(waited), strsignal(WTERMSIG(waited)));
  return 1;
}

}  // namespace detail

/// Runs `body(rank)`, which returns an exit status, for `count` ranks, each in a process of its own, and waits for
/// them. What it throws is printed, and is the status 1. CUDA and NCCL do not survive a fork: the caller has used
/// neither.
///
/// As soon as a rank fails, the others are killed: they may be waiting for it on the device, where nothing wakes them.
///
/// @param started  called once all have been started: to close what is theirs alone
/// @return 0 if all ranks returned 0, else the status of the first that did not
template <class Body, class Started>
int run_forked(int count, const Body& body, const Started& started) {
  std::fflush(nullptr);  // or each rank would print it again
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
