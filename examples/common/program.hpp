// How a program ends: what went wrong is said on the standard error, and is the exit status.
#pragma once

#include <csignal>
#include <exception>
#include <iostream>
#include <string>

#include "output_file.hpp"
#include "usage_error.hpp"

namespace programs {

/// @throws output_error where not all of the standard output has been taken
inline void require_written() {
  if (!std::cout.flush()) throw output_error("the standard output could not be written");
}

/// Calls body(), which returns an exit status. Of what it throws, 2 is a wrong command line, and 1 what went wrong at work.
///
/// @param at          where it went wrong, for messages: empty, or as "rank 1 of 4: "
/// @param says_usage  of several processes one alone says what is wrong with the command line of all
template <class Body>
int exit_status(const std::string& program, const Body& body, const std::string& at = "", bool says_usage = true) try {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error to report, not the end of the process
  return body();
} catch (const usage_error& error) {
  if (says_usage)
    std::cerr << program << ": " << error.what() << '\n' << program << " --help says the options" << std::endl;
  return 2;
} catch (const std::exception& error) {
  std::cerr << program << ": " << at << error.what() << std::endl;
  return 1;
}

}  // namespace programs
