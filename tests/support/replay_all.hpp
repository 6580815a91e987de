// Replays many traces on the host backend, and prints the report of slamb_replay.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "replay.hpp"
#include "trace.hpp"

namespace test_support {

/// Replays every folder. Prints a line `name max_rel_err=X` each, then `N passed, M failed`, on `out`; reasons of failures go to
/// `err`. A plain file, which `traces/*` may match, is ignored with a message on `err`.
///
/// @return 0, or 1 if any trace differs by more than `tolerance` or could not be replayed, or if there was none
inline int replay_all(const std::vector<std::string>& folders, double tolerance, std::ostream& out, std::ostream& err) {
  const auto text = [](double x) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.3g", x);
    return std::string(digits);
  };
  std::size_t passed = 0;
  std::size_t failed = 0;
  for (const std::string& folder : folders) {
    const std::string name = trace_name(folder);
    if (std::filesystem::is_regular_file(folder)) {
      err << name << " left out: a file, and a trace is a folder" << std::endl;
      continue;
    }
    ++failed;  // until it passes
    try {
      const double error = replay(read_trace(folder));
      out << name << " max_rel_err=" << text(error) << std::endl;
      if (error <= tolerance) {
        ++passed;
        --failed;
      } else {
        err << name << " error: differs by more than the tolerance of " << text(tolerance) << std::endl;
      }
    } catch (const std::exception& failure) {
      err << name << " error: " << failure.what() << std::endl;
    }
  }
  out << passed << " passed, " << failed << " failed" << std::endl;
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace test_support
