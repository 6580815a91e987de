// Checks of option values for CLI11 whose messages name the value and what it should be: "'0' is not an integer in [1, 9]".
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <set>
#include <slamb/core/config.hpp>
#include <string>

#include "usage_error.hpp"

namespace option_checks {

/// What --version prints.
inline std::string version_text(const std::string& program) {
  return program + " " + std::to_string(SLAMB_VERSION_MAJOR) + "." + std::to_string(SLAMB_VERSION_MINOR) + "." +
         std::to_string(SLAMB_VERSION_PATCH);
}

/// Accepts the texts that `accepts` does; says "'text' is not <wanted>" of others.
template <class Accepts>
CLI::Validator expecting(const std::string& wanted, Accepts accepts) {
  const auto check = [wanted, accepts](const std::string& text) {
    return accepts(text) ? std::string() : "'" + text + "' is not " + wanted;
  };
  return CLI::Validator(check, "");
}

template <class Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

inline CLI::Validator integer_in(std::uint64_t least, std::uint64_t most) {
  const std::string range = "an integer in [" + std::to_string(least) + ", " + std::to_string(most) + "]";
  return expecting(range, [least, most](const std::string& text) {
    std::uint64_t value = 0;
    return read_number(text, value) && value >= least && value <= most;
  });
}

/// `range` describes [least, most], or (least, most] where `least` is left out.
inline CLI::Validator number_in(const std::string& range, double least, double most) {
  const bool left_out = range.front() == '(';
  return expecting("a number in " + range, [left_out, least, most](const std::string& text) {
    double value = 0.0;
    return read_number(text, value) && (left_out ? value > least : value >= least) && value <= most;
  });
}

inline CLI::Validator file_name() {
  return expecting("the name of a file", [](const std::string& path) { return !path.empty(); });
}

template <class Names>
CLI::Validator one_of(const Names& names) {
  const std::set<std::string, std::less<>> known(names.begin(), names.end());
  return expecting("one of " + joined(names), [known](const std::string& text) { return known.contains(text); });
}

}  // namespace option_checks
