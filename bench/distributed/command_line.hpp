// The command line of slamb_bench_mpi: every value is checked before any work.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../../examples/option_checks.hpp"
#include "settings.hpp"

namespace bench::distributed {

using option_checks::usage_error;

namespace detail {

inline void add_options(CLI::App& app, settings& into, std::span<const std::string_view> optimizers) {
  using namespace option_checks;
  constexpr std::uint64_t most_steps = 1'000'000;
  const auto option = [&app](const std::string& name, auto& value, const std::string& text, const char* type) {
    return app.add_option(name, value, text)->type_name(type)->capture_default_str();
  };
  option("--parameters", into.parameters, "Elements of the model, in tensors shaped as BERT's", "N")
      ->check(integer_in(1000, 2'000'000'000));
  option("--optimizer", into.optimizers,
         "Which of " + joined(optimizers) + "; repeat it or join by commas. LAMB is measured in any case", "NAME")
      ->delimiter(',')
      ->check(one_of(optimizers));
  option("--steps", into.steps, "Steps to time of each optimizer, rounded up to whole periods", "N")
      ->check(integer_in(1, most_steps));
  option("--seconds", into.seconds, "Seconds of steps to time, rounded up to whole periods", "X")
      ->check(number_in("[0, 86400]", 0.0, 86400.0));
  option("--threads", into.threads, "Threads of each rank's optimizer", "N")->check(integer_in(1, 1024));
  option("--k", into.k, "SLAMB: part of the momentum sent at each step", "X")
      ->check(number_in("[0.0001, 1]", 1e-4, 1.0));
  option("--block", into.block, "SLAMB: elements of the momentum that are sent together", "N")
      ->check(integer_in(1, std::uint64_t{1} << 20));
  option("--local-steps", into.local_steps, "SLAMB: steps from one mean of the parameters to the next (H), its period",
         "N")
      ->check(integer_in(1, most_steps));
  option("--local-interval", into.local_interval, "0/1 Adam: steps from one exchange to the next, its period", "N")
      ->check(integer_in(1, 1000));
  option("--message-bytes", into.message_bytes, "Of a message between ranks, at most", "N")
      ->check(integer_in(64, std::uint64_t{1} << 30));
  app.add_flag(
      "--in-parts", into.in_parts,
      "Takes steps in parts, tensor by tensor from the last, so that exchanges run beside computation; nothing "
      "is predicted then");
  app.add_option(
         "--link-bandwidth", into.link_bandwidth,
         "Bits a second to which each rank's link is limited in each direction, for the prediction [none is made]")
      ->type_name("X")
      ->check(number_in("(0, 1e15]", 0.0, 1e15));
  option("--latency", into.latency, "Seconds of a hop between ranks, for the prediction", "X")
      ->check(number_in("[0, 1000]", 0.0, 1000.0));
  app.add_option("--json", into.json, "Write settings and results")->type_name("FILE")->check(file_name());
}

}  // namespace detail

/// Reads the command line. Prints help or the version itself and then throws CLI::Success.
///
/// @throws usage_error
inline settings parse_command_line(int argc, const char* const* argv, std::span<const std::string_view> optimizers) {
  settings chosen;
  CLI::App app(
      "Times the steps of the optimizers over the processes that mpirun starts, each of which is a rank, and compares "
      "them "
      "with dense LAMB's and with what the planner predicts.",
      "slamb_bench_mpi");
  app.set_version_flag("--version", option_checks::version_text("slamb_bench_mpi"));
  detail::add_options(app, chosen, optimizers);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    throw;
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  for (const std::string& name : chosen.optimizers) {
    if (std::ranges::count(chosen.optimizers, name) > 1)
      throw usage_error("--optimizer: '" + name + "' is there twice, and each is measured once");
  }
  return chosen;
}

}  // namespace bench::distributed
