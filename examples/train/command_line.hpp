// The command line: every value is checked here, before any work, and a message names option, value and range.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <slamb/core/config.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "digits.hpp"
#include "settings.hpp"

namespace train {

/// Options that do not go together, or not with the data.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

constexpr std::uint64_t most_steps = 1'000'000;

inline std::string version_text() {
  return "slamb_train " + std::to_string(SLAMB_VERSION_MAJOR) + "." + std::to_string(SLAMB_VERSION_MINOR) + "." +
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

/// "a, b, c"
template <class Names>
std::string joined(const Names& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

template <class Names>
CLI::Validator one_of(const Names& names) {
  const std::set<std::string, std::less<>> known(names.begin(), names.end());
  return expecting("one of " + joined(names), [known](const std::string& text) { return known.contains(text); });
}

inline void add_training_options(CLI::App& app, settings& into, std::span<const std::string_view> known) {
  app.add_option("--optimizer", into.optimizers, "Which of " + joined(known) + "; repeat it or join by commas [all]")
      ->delimiter(',')
      ->type_name("NAME")
      ->check(one_of(known));
  const auto number = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->type_name("N")->capture_default_str();
  };
  number("--ranks", into.ranks, "Ranks, each a thread with a shard of the training set")->check(integer_in(1, 64));
  number("--batch", into.batch, "Images a step, over all ranks")->check(integer_in(1, most_steps));
  number("--steps", into.steps, "Steps a run")->check(integer_in(1, most_steps));
  number("--learning-rate", into.learning_rate, "Peak learning rate [each optimizer's own]")
      ->type_name("X")
      ->check(number_in("(0, 1000000]", 0.0, 1e6));
  app.add_option("--schedule", into.schedule, "After the warm-up: constant, polynomial, cosine or step")
      ->type_name("NAME")
      ->capture_default_str()
      ->check(one_of(schedule_names));
  number("--warmup", into.warmup, "Steps of linear warm-up [a tenth of the steps]")
      ->check(integer_in(0, most_steps - 1));
  number("--weight-decay", into.weight_decay, "Weight decay")
      ->type_name("X")
      ->check(number_in("[0, 1000000]", 0.0, 1e6));
  constexpr auto largest_seed = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  number("--seed", into.seed, "The first seed")->check(integer_in(0, largest_seed));
  number("--seeds", into.seeds, "How many seeds, counted from the first")->check(integer_in(1, 1000));
}

inline void add_slamb_options(CLI::App& app, settings& into) {
  app.add_option("--k", into.k, "SLAMB: part of the momentum sent at each step")
      ->type_name("X")
      ->capture_default_str()
      ->check(number_in("[0.0001, 1]", 1e-4, 1.0));
  app.add_option("--block", into.block, "SLAMB: contiguous elements that are sent together")
      ->type_name("N")
      ->capture_default_str()
      ->check(integer_in(1, std::uint64_t{1} << 20U));
  app.add_option("--beta3", into.beta3, "SLAMB: decay of trust in momentum not lately sent")
      ->type_name("X")
      ->capture_default_str()
      ->check(number_in("[0, 1]", 0.0, 1.0));
  app.add_option("--local-steps", into.local_steps, "SLAMB: steps from one mean of the parameters to the next (H)")
      ->type_name("N")
      ->capture_default_str()
      ->check(integer_in(1, most_steps));
}

inline void add_file_options(CLI::App& app, settings& into) {
  const auto file = [&app](const std::string& name, std::string& value, const std::string& text) {
    return app.add_option(name, value, text)
        ->type_name("FILE")
        ->check(expecting("the name of a file", [](const std::string& path) { return !path.empty(); }));
  };
  file("--data", into.data, "Images: CSV rows of 64 pixels (0...16) and a label (0...9)")->capture_default_str();
  file("--json", into.json, "Write settings and results");
  file("--csv", into.csv, "Write the loss and the bytes sent by step");
  file("--plot", into.plot, "Draw the loss against the bytes sent, as SVG (by gnuplot)");
}

inline void check_together(const settings& chosen) {
  for (const std::string& name : chosen.optimizers) {
    if (std::ranges::count(chosen.optimizers, name) > 1)
      throw usage_error("--optimizer: '" + name + "' is there twice");
  }
  if (chosen.warmup_steps() >= chosen.steps) {
    throw usage_error("--warmup: " + std::to_string(chosen.warmup_steps()) + " is not in [0, " +
                      std::to_string(chosen.steps - 1) + "]: fewer than --steps");
  }
  if (chosen.batch < static_cast<std::uint64_t>(chosen.ranks)) {
    throw usage_error("--batch: " + std::to_string(chosen.batch) + " is not >= --ranks, which is " +
                      std::to_string(chosen.ranks));
  }
  if (!chosen.plot.empty() && chosen.ranks == 1) {
    throw usage_error("--plot: a single rank sends nothing to plot against; --ranks must be in [2, 64]");
  }
}

}  // namespace detail

/// Reads the command line; `optimizers` are the names that there are. Prints help or the version itself and then throws
/// CLI::Success.
///
/// @throws usage_error
inline settings parse_command_line(int argc, const char* const* argv, std::span<const std::string_view> optimizers) {
  settings chosen;
  CLI::App app(
      "Trains a small network on images of handwritten digits, with every optimizer of the library on several ranks of "
      "this process, and compares their accuracy and what they send.",
      "slamb_train");
  app.set_version_flag("--version", detail::version_text());
  detail::add_training_options(app, chosen, optimizers);
  detail::add_slamb_options(app, chosen);
  detail::add_file_options(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    throw;
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  if (chosen.optimizers.empty()) chosen.optimizers.assign(optimizers.begin(), optimizers.end());
  detail::check_together(chosen);
  return chosen;
}

/// @throws data_error or usage_error where the data has too few rows.
inline void check_against_data(const settings& chosen, const split_digits& data) {
  const std::size_t rows = data.training.rows();
  const std::string has = " (" + chosen.data + " has " + std::to_string(rows + data.test.rows()) + " rows, " +
                          std::to_string(rows) + " of them for training)";
  if (rows < static_cast<std::size_t>(chosen.ranks)) {
    throw data_error(chosen.data + ": expected a training row for each rank, of which there are " +
                     std::to_string(chosen.ranks) + has);
  }
  if (chosen.batch > rows) {
    throw usage_error("--batch: " + std::to_string(chosen.batch) + " is not in [" + std::to_string(chosen.ranks) +
                      ", " + std::to_string(rows) + "]" + has);
  }
}

}  // namespace train
