// The settings of an nccl_communicator.
#pragma once

#include <chrono>
#include <cstdint>

namespace slamb {

/// Settings of an nccl_communicator.
struct nccl_options {
  std::chrono::milliseconds timeout{
      300000};  ///< of one wait: for peers, NCCL, a stream, or work in flight at the end; > 0
  std::chrono::milliseconds abort_timeout{30000};  ///< of a call that ends the communicator, which can hang too; > 0
  std::chrono::microseconds poll_interval{50};     ///< sleep between polls, after the first few; ≥ 0
  std::uint64_t max_polls = 0;                     ///< a wait also ends after so many polls; 0: no limit
  bool abort_borrowed = false;                     ///< a failure also aborts a borrowed communicator
};

}  // namespace slamb
