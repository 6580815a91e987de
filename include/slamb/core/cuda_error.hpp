// Errors of the CUDA runtime as exceptions, with the code and the call. Plain C++, without nvcc.
#pragma once

#include <string>

#include "slamb/core/detail/gpu_runtime.hpp"
#include "slamb/core/error.hpp"

namespace slamb {

/// A call of the CUDA runtime has failed, or work that was enqueued before the call.
class cuda_error : public error {
 public:
  /// @param call  name of the function that reported `code`: a literal, because its pointer is kept
  cuda_error(cudaError_t code, const char* call)
      : error("slamb: " + std::string(call) + " failed: " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) +
              " = " + std::to_string(static_cast<int>(code)) + ")"),
        code_(code),
        call_(call) {}

  cudaError_t code() const noexcept { return code_; }
  const char* call() const noexcept { return call_; }

 private:
  cudaError_t code_;
  const char* call_;
};

namespace detail {

/// Throws if `code` is not cudaSuccess. Clears the runtime's record of the error, if it can be cleared, so that later checks do
/// not find it again.
///
/// @throws cuda_error with `code` and `call`, which is a literal
inline void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw cuda_error(code, call);
}

}  // namespace detail
}  // namespace slamb
