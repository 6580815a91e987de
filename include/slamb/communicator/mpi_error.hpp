// What MPI reports, as an exception that keeps the code, the call and MPI's own words.
#pragma once

#include <mpi.h>

#include <string>

#include "slamb/core/error.hpp"

namespace slamb {

/// A call of MPI failed, or a message did.
class mpi_error : public communicator_error {
 public:
  /// `call`: name of the function; a literal, of which the pointer is kept. `what`: of which rank and collective.
  mpi_error(int code, const char* call, const std::string& what)
      : communicator_error("slamb: " + what + ": " + call + " failed: " + text_of(code) + " (code " +
                           std::to_string(code) + ")"),
        code_(code),
        call_(call) {}

  /// What MPI returned; MPI_Error_class finds its class.
  int code() const noexcept { return code_; }
  /// The function that returned it.
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
