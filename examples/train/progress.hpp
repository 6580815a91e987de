// A progress bar on a terminal. Without a terminal it prints nothing.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace train {

/// Draws on the standard error, at most ten times a second, and erases itself at the end.
class progress_bar {
 public:
  explicit progress_bar(std::uint64_t total_steps) : total_(total_steps), shown_(isatty(STDERR_FILENO) == 1) {}
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  ~progress_bar() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }

  void begin(std::string label) { label_ = std::move(label); }

  /// Prints `line` in a line of its own. The bar is drawn below it, the next time it is drawn.
  void say(const std::string& line) {
    std::fprintf(stderr, "%sslamb_train: %s\n", drawn_ ? "\r\x1b[K" : "", line.c_str());
    drawn_ = false;
  }

  void advance() {
    ++done_;
    const auto now = clock::now();
    if (!shown_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    constexpr std::uint64_t width = 40;
    const std::uint64_t filled = done_ * width / total_;
    std::string bar(filled, '#');
    bar.append(width - filled, '.');
    std::fprintf(stderr, "\r[%s] %3d %%  %s\x1b[K", bar.c_str(), static_cast<int>(done_ * 100 / total_),
                 label_.c_str());
    drawn_ = true;
  }

 private:
  using clock = std::chrono::steady_clock;

  std::uint64_t total_;
  std::uint64_t done_ = 0;
  bool shown_;
  bool drawn_ = false;
  clock::time_point next_{};
  std::string label_;
};

}  // namespace train
