// The settings of an nccl_communicator.
#pragma once

#include <chrono>
#include <cstdint>

namespace slamb {

/// Settings of an nccl_communicator.
struct nccl_options {
  std::chrono::milliseconds timeout{300000};       ///< of one wait: for peers, for NCCL, for a stream; > 0
  std::chrono::milliseconds abort_timeout{30000};  ///< of one ncclCommAbort, which itself can hang; > 0
  std::chrono::microseconds poll_interval{50};     ///< sleep between looks, after the first few; ≥ 0
  std::uint64_t max_polls = 0;                     ///< a wait also ends after so many looks in vain; 0: no such limit
  bool abort_borrowed = false;                     ///< whether a failure aborts a communicator that is borrowed
};

}  // namespace slamb
