// An NCCL error as an exception that keeps the result code, the NCCL function and NCCL's own message.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "slamb/core/error.hpp"

namespace slamb {

/// A call of NCCL failed or timed out, or work enqueued before has failed.
class nccl_error : public communicator_error {
 public:
  /// @param call  name of the function; a literal, because only the pointer is kept
  /// @param what  follows the function's name in what()
  /// @param last_error  ncclGetLastError at that time; may be empty
  nccl_error(ncclResult_t result, const char* call, const std::string& what, const std::string& last_error)
      : communicator_error("slamb: " + std::string(call) + " " + what +
                           (last_error.empty() ? "" : "; NCCL's last error: " + last_error)),
        result_(result),
        call_(call),
        last_error_(std::make_shared<const std::string>(last_error)) {}

  /// The code that NCCL returned; ncclInProgress if a wait timed out.
  ncclResult_t result() const noexcept { return result_; }
  /// The function that returned it; "cudaStreamQuery" if the wait was for a stream.
  const char* call() const noexcept { return call_; }
  /// ncclGetLastError at that time. It may be about an earlier call.
  const std::string& last_error() const noexcept { return *last_error_; }

 private:
  ncclResult_t result_;
  const char* call_;
  std::shared_ptr<const std::string> last_error_;  // shared, so that copies cannot throw
};

namespace detail {

/// "failed: unhandled system error (ncclResult_t 2)".
inline std::string nccl_failure_text(ncclResult_t result) {
  return std::string("failed: ") + ncclGetErrorString(result) + " (ncclResult_t " +
         std::to_string(static_cast<int>(result)) + ")";
}

/// Checks a call that needs no communicator and does not continue in the background.
/// @throws nccl_error
inline void check_nccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const char* last = ncclGetLastError(nullptr);
  throw nccl_error(result, call, nccl_failure_text(result), last == nullptr ? "" : last);
}

}  // namespace detail
}  // namespace slamb
