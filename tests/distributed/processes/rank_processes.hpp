// Ranks as processes, of which one may be lost as planned, and memory that they share. No process is left when a call returns.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "../../../examples/common/forked_ranks.hpp"

namespace rank_tests {

using std::chrono::milliseconds;

/// [count] values, zeros at first, in memory that a process shares with all that it forks later.
template <class T>
class shared_values {
  static_assert(std::is_trivially_copyable_v<T>, "processes share bytes, not objects");

 public:
  explicit shared_values(std::size_t count) : count_(count) {
    void* const memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    values_ = static_cast<T*>(memory);
  }
  shared_values(shared_values&&) = delete;
  ~shared_values() { munmap(values_, bytes()); }

  std::span<T> all() const { return {values_, count_}; }
  T& operator[](std::size_t i) const { return values_[i]; }

 private:
  std::size_t bytes() const { return std::max<std::size_t>(count_, 1) * sizeof(T); }

  std::size_t count_;
  T* values_;
};

/// A text that fits into shared memory. Its end is cut off if it is too long.
struct short_text {
  char letters[1000];

  void set(std::string_view text) { letters[text.copy(letters, sizeof letters - 1)] = '\0'; }
  std::string get() const { return letters; }
  bool empty() const { return letters[0] == '\0'; }
};

/// The end of a process: its exit status, or the signal that killed or stopped it. One that was late has been killed here.
struct ending {
  enum kind { running, exited, killed, stopped, late } how = running;
  int number = 0;  ///< exit status or signal

  bool is(kind expected, int of) const { return how == expected && number == of; }
  std::string text() const {
    switch (how) {
      case exited:
        return "exited with status " + std::to_string(number);
      case killed:
        return "was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
      case stopped:
        return "was stopped by signal " + std::to_string(number);
      case late:
        return "did not end in time";
      case running:
        break;
    }
    return "was not started";
  }
};

namespace detail {

/// Looks at a process, without waiting. True if it has ended, and is no more.
inline bool has_ended(pid_t process, ending& end) {
  int status = 0;
  pid_t seen = 0;
  do seen = waitpid(process, &status, WNOHANG | WUNTRACED);
  while (seen < 0 && errno == EINTR);
  if (seen == 0) return false;
  if (seen < 0) return true;
  if (WIFSTOPPED(status)) {
    end = {ending::stopped, WSTOPSIG(status)};
    return false;
  }
  end = WIFEXITED(status) ? ending{ending::exited, WEXITSTATUS(status)} : ending{ending::killed, WTERMSIG(status)};
  return true;
}

inline void kill_and_wait(pid_t process) {
  kill(process, SIGKILL);
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace detail

inline constexpr int no_rank = -1;

/// Runs `body(rank)`, which returns an exit status, in a process for each of `count` ranks, and waits for them.
///
/// @param lost   the rank that will be lost. If it is stopped, it is killed once the others have ended. Without such a rank, one that
///               fails ends the others
/// @param limit  after which ranks that are still running are killed
template <class Body>
std::vector<ending> run_ranks(int count, int lost, milliseconds limit, const Body& body) {
  std::fflush(nullptr);  // otherwise each rank would print it again
  std::vector<ending> ends(static_cast<std::size_t>(count));
  std::vector<pid_t> processes(ends.size(), 0);  // 0: has ended
  for (std::size_t r = 0; r < ends.size(); ++r)
    processes[r] = std::max(programs::detail::start(static_cast<int>(r), body), 0);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (bool waits = true; waits;) {
    waits = false;
    bool has_failed = false;
    for (std::size_t r = 0; r < ends.size(); ++r) {
      if (processes[r] != 0 && detail::has_ended(processes[r], ends[r])) processes[r] = 0;
      const bool is_lost = static_cast<int>(r) == lost;
      waits = waits || (processes[r] != 0 && !(is_lost && ends[r].how == ending::stopped));
      has_failed = has_failed || (processes[r] == 0 && !is_lost && !ends[r].is(ending::exited, 0));
    }
    if (std::chrono::steady_clock::now() > deadline || (has_failed && lost == no_rank)) break;
    if (waits) std::this_thread::sleep_for(milliseconds(2));
  }
  for (std::size_t r = 0; r < ends.size(); ++r) {
    if (processes[r] == 0) continue;
    detail::kill_and_wait(processes[r]);
    if (ends[r].how == ending::running) ends[r].how = ending::late;
  }
  return ends;
}

/// Calls `body(i)` for i < `count`, each in a process of its own, at most `jobs` at a time, and `ended()` after each.
template <class Body, class Ended>
void in_parallel(std::size_t jobs, std::size_t count, const Body& body, const Ended& ended) {
  std::fflush(nullptr);
  std::vector<pid_t> running;
  const auto wait_for_one = [&] {
    const pid_t found = wait(nullptr);
    if (found < 0 && errno != EINTR) running.clear();  // there are no processes to wait for
    if (std::erase(running, found) > 0) ended();
  };
  const auto one = [&](int number) {
    body(static_cast<std::size_t>(number));
    return 0;
  };
  for (std::size_t i = 0; i < count; ++i) {
    while (running.size() >= jobs) wait_for_one();
    const pid_t started = programs::detail::start(static_cast<int>(i), one);
    if (started > 0) running.push_back(started);
  }
  while (!running.empty()) wait_for_one();
}

/// To be called first: processes whose parent has died become children of this one, so that `any_process_is_left` finds them.
inline void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

/// True if a process that this one, or a descendant, has started is still there after a short while.
inline bool any_process_is_left() {
  const auto deadline = std::chrono::steady_clock::now() + milliseconds(5000);
  for (;;) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0 && errno == ECHILD) return false;
    if (ended == 0) {
      if (std::chrono::steady_clock::now() > deadline) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
}

}  // namespace rank_tests
