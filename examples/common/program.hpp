// Exit status and error messages of a program: an error is printed on the standard error, and sets the exit status.
#pragma once

#include <csignal>
#include <exception>
#include <iostream>
#include <string>

#include "output_file.hpp"
#include "usage_error.hpp"

namespace programs {

/// @throws output_error if the standard output could not be written completely
inline void require_written() {
  if (!std::cout.flush()) throw output_error("the standard output could not be written");
}

/// Calls body(), which returns an exit status. Exceptions become an exit status: 2 for a wrong command line, 1 for other
/// errors.
///
/// @param at  the place of the error, for messages: empty, or "rank 1 of 4: "
/// @param says_usage  print errors of the command line; set on one process only
template <class Body>
int exit_status(const std::string& program, const Body& body, const std::string& at = "", bool says_usage = true) try {
  std::signal(SIGPIPE, SIG_IGN);  // if the reader of a pipe leaves, writing must fail, not kill the process
  return body();
} catch (const usage_error& error) {
  if (says_usage)
    std::cerr << program << ": " << error.what() << '\n' << program << " --help lists the options" << std::endl;
  return 2;
} catch (const std::exception& error) {
  std::cerr << program << ": " << at << error.what() << std::endl;
  return 1;
}

}  // namespace programs
