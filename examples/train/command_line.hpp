// The command line of slamb_train. It checks every value before any work; errors name option, value and range.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "../common/usage_error.hpp"
#include "digits.hpp"
#include "settings.hpp"

namespace train {

/// A wrong command line.
using programs::usage_error;

/// The permitted names of optimizers and compressors.
struct known_names {
  std::span<const std::string_view> optimizers;
  std::span<const std::string_view> compressors;
};

/// Reads the command line. If processes are the ranks, `processes` is their number. Prints the help or the version if asked
/// for, and then returns nothing.
///
/// @throws usage_error
std::optional<settings> parse_command_line(int argc, const char* const* argv, const known_names& known,
                                           int processes = 0);

/// @throws data_error or usage_error if the data has too few rows
void check_against_data(const settings& chosen, const split_digits& data);

}  // namespace train
