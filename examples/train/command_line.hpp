// The command line: every value is checked here, before any work, and a message names option, value and range.
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

/// The names that options may have.
struct known_names {
  std::span<const std::string_view> optimizers;
  std::span<const std::string_view> compressors;
};

/// Reads the command line; where processes are the ranks, their number is `processes`. Nothing if help or the version was asked
/// for, which it has printed then.
///
/// @throws usage_error
std::optional<settings> parse_command_line(int argc, const char* const* argv, const known_names& known,
                                           int processes = 0);

/// @throws data_error or usage_error where the data has too few rows.
void check_against_data(const settings& chosen, const split_digits& data);

}  // namespace train
