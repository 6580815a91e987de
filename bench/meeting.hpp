// Where the threads of a benchmark's ranks wait for each other.
#pragma once

#include <barrier>

namespace bench {

/// A rank that fails must not leave the other waiting.
class meeting {
 public:
  explicit meeting(std::barrier<>& ranks) : ranks_(ranks) {}
  meeting(const meeting&) = delete;
  meeting& operator=(const meeting&) = delete;
  ~meeting() { ranks_.arrive_and_drop(); }
  void wait() { ranks_.arrive_and_wait(); }

 private:
  std::barrier<>& ranks_;
};

}  // namespace bench
