// A barrier for the threads of a benchmark's ranks.
#pragma once

#include <barrier>

namespace bench {

/// Leaves the barrier on destruction, so that a rank that fails does not leave the others waiting.
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
