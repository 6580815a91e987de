// Command lines by CLI11. Errors name the wrong value and the values that are permitted: "'0' is not an integer in [1, 9]".
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <set>
#include <slamb/threads.hpp>  // and the version
#include <string>
#include <vector>

#include "usage_error.hpp"

namespace programs {

/// The command line of a program, with --help and --version.
class command_line : public CLI::App {
 public:
  command_line(const std::string& program, const std::string& description) : CLI::App(description, program) {
    set_version_flag("--version", program + " " + std::to_string(SLAMB_VERSION_MAJOR) + "." +
                                      std::to_string(SLAMB_VERSION_MINOR) + "." + std::to_string(SLAMB_VERSION_PATCH));
  }

  /// An option that takes a value. --help shows its default.
  template <class Value>
  CLI::Option* add(const std::string& name, Value& value, const std::string& text, const std::string& type) {
    return add_option(name, value, text)->type_name(type)->capture_default_str();
  }

  /// An option that takes names, repeated or joined by commas.
  CLI::Option* add_names(const std::string& name, std::vector<std::string>& values, const std::string& text) {
    return add_option(name, values, text)->delimiter(',')->type_name("NAME");
  }

  /// Sets the variables of the options. Prints the help or the version if asked for, and then returns false.
  /// @throws usage_error
  bool read(int argc, const char* const* argv) try {
    parse(argc, argv);
    return true;
  } catch (const CLI::Success& asked) {
    exit(asked);
    return false;
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
};

/// Accepts the texts that `accepts` returns true for; the error for others is "'text' is not <wanted>".
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

/// `range` describes [least, most], or (least, most] without `least`.
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

}  // namespace programs
