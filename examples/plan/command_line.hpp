// The command line of slamb_plan. It checks every value before any work.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "../common/usage_error.hpp"
#include "settings.hpp"

namespace plan {

using programs::usage_error;

/// Reads the command line; `optimizers` are the known names. Prints the help or the version if asked for, and then returns
/// nothing.
///
/// @throws usage_error
std::optional<settings> parse_command_line(int argc, const char* const* argv,
                                           std::span<const std::string_view> optimizers);

}  // namespace plan
