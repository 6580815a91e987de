// What NCCL reports, as an exception that keeps the code, the call and NCCL's own words.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "slamb/core/error.hpp"

namespace slamb {

/// A call of NCCL failed, or did not end in time, or what was enqueued before has failed.
class nccl_error : public communicator_error {
 public:
  /// `call`: name of the function; a literal, of which the pointer is kept. `what`: for `what()`, after its name.
  nccl_error(ncclResult_t result, const char* call, const std::string& what, const std::string& last_error)
      : communicator_error("slamb: " + std::string(call) + " " + what +
                           (last_error.empty() ? "" : "; NCCL's last error: " + last_error)),
        result_(result),
        call_(call),
        last_error_(std::make_shared<const std::string>(last_error)) {}

  /// What NCCL returned; ncclInProgress where a wait ended before the call did.
  ncclResult_t result() const noexcept { return result_; }
  /// The function that returned it; "cudaStreamQuery" where a stream was waited for.
  const char* call() const noexcept { return call_; }
  /// ncclGetLastError at that time, which may be about an earlier call.
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

/// For calls that have no communicator and end at once.
inline void check_nccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const char* last = ncclGetLastError(nullptr);
  throw nccl_error(result, call, nccl_failure_text(result), last == nullptr ? "" : last);
}

}  // namespace detail
}  // namespace slamb
