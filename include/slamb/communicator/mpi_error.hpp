// An MPI error as an exception that keeps the error code, the MPI function and MPI's own message.
#pragma once

#include <mpi.h>

#include <string>

#include "slamb/core/error.hpp"

namespace slamb {

/// A call of MPI failed, or a message did.
class mpi_error : public communicator_error {
 public:
  /// @param call  name of the MPI function; a literal, because only the pointer is kept
  /// @param what  rank and collective, for the message
  mpi_error(int code, const char* call, const std::string& what)
      : communicator_error("slamb: " + what + ": " + call + " failed: " + text_of(code) + " (code " +
                           std::to_string(code) + ")"),
        code_(code),
        call_(call) {}

  /// The code that MPI returned; MPI_Error_class finds its class.
  int code() const noexcept { return code_; }
  /// The MPI function that returned it.
  const char* call() const noexcept { return call_; }

 private:
  static std::string text_of(int code) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "an error without a text";
    return {text, static_cast<std::size_t>(length)};
  }

  int code_;
  const char* call_;
};

}  // namespace slamb
