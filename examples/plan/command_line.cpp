#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "../option_checks.hpp"
#include "models.hpp"

namespace plan {

namespace {

constexpr std::uint64_t most_steps = 1'000'000;

void add_training_options(CLI::App& app, settings& into, std::span<const std::string_view> optimizers) {
  using namespace option_checks;
  const auto number = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->type_name("N")->capture_default_str();
  };
  CLI::Option* const model =
      app.add_option("--model", into.model, "Whose tensors: " + joined(model_names()))->type_name("NAME");
  model->capture_default_str()->check(one_of(model_names()));
  app.add_option("--shapes", into.shapes, "Tensors of your own: lines of name D0 D1 ...; # begins a comment")
      ->type_name("FILE")
      ->excludes(model)
      ->check(file_name());
  app.add_option("--optimizer", into.optimizers,
                 "Which of " + joined(optimizers) + "; repeat it or join by commas [all]")
      ->delimiter(',')
      ->type_name("NAME")
      ->check(one_of(optimizers));
  number("--steps", into.steps, "Steps of the training")->check(integer_in(1, most_steps));
  number("--ranks", into.ranks, "Ranks")->check(integer_in(1, 1'000'000));
  number("--value-bytes", into.value_bytes,
         "Bytes of a value that is summed: 4 as the library sends it, 2 where a communicator sums in fp16")
      ->check(one_of(std::array{"2", "4"}));
  number("--k", into.k, "SLAMB: part of the momentum sent at each step")
      ->type_name("X")
      ->check(number_in("[0.0001, 1]", 1e-4, 1.0));
  number("--local-steps", into.local_steps, "SLAMB: steps from one mean of the parameters to the next (H)")
      ->check(integer_in(1, most_steps));
  number("--warmup-steps", into.warmup_steps, "1-bit Adam and LAMB: steps of the dense warm-up [1000 of 5993]")
      ->check(integer_in(1, most_steps));
  number("--freeze-step", into.freeze_step, "0/1 Adam: when the variance is frozen [12500 of 118000]")
      ->check(integer_in(0, most_steps));
  number("--variance-update-scaler", into.variance_update_scaler, "0/1 Adam: refreshes before their interval doubles")
      ->check(integer_in(1, most_steps));
  number("--local-step-scaler", into.local_step_scaler, "0/1 Adam: steps before the interval of exchanges doubles")
      ->check(integer_in(1, most_steps));
  number("--local-step-clipper", into.local_step_clipper, "0/1 Adam: the longest interval of exchanges")
      ->check(integer_in(1, most_steps));
}

// Options in the units that such numbers are spoken of; settings are in bytes and seconds.
struct spoken {
  double gigabits = 25.0;
  double microseconds = 20.0;
  double node_gigabytes = 300.0;
  double memory_gigabytes = 1500.0;
  double compute_milliseconds = 200.0;
};

void add_machine_options(CLI::App& app, settings& into, spoken& units) {
  using namespace option_checks;
  const auto number = [&app](const std::string& name, double& value, const std::string& text, bool zero) {
    app.add_option(name, value, text)
        ->type_name("X")
        ->capture_default_str()
        ->check(zero ? number_in("[0, 1e9]", 0.0, 1e9) : number_in("(0, 1e9]", 0.0, 1e9));
  };
  number("--bandwidth", units.gigabits, "Gbit/s of a node's link, in each direction", false);
  number("--latency", units.microseconds, "Microseconds of a hop from node to node", true);
  app.add_option("--ranks-per-node", into.network.ranks_per_node, "Ranks that share a node's link")
      ->type_name("N")
      ->capture_default_str()
      ->check(integer_in(1, 1'000'000));
  number("--node-bandwidth", units.node_gigabytes, "GB/s of a rank to others on its node", false);
  number("--memory-bandwidth", units.memory_gigabytes, "GB/s of a rank's memory", false);
  number("--compute-ms", units.compute_milliseconds, "Milliseconds of a step's forward and backward pass", true);
  app.add_option("--json", into.json, "Write settings and results")->type_name("FILE")->check(file_name());
}

}  // namespace

std::optional<settings> parse_command_line(int argc, const char* const* argv,
                                           std::span<const std::string_view> optimizers) {
  settings chosen;
  spoken units;
  CLI::App app(
      "Plans a training: what each optimizer sends, how long a step takes on a network, and under which bandwidth it "
      "is "
      "faster than dense LAMB.",
      "slamb_plan");
  app.set_version_flag("--version", option_checks::version_text("slamb_plan"));
  add_training_options(app, chosen, optimizers);
  add_machine_options(app, chosen, units);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  if (chosen.optimizers.empty()) chosen.optimizers.assign(optimizers.begin(), optimizers.end());
  for (const std::string& name : chosen.optimizers)
    if (std::ranges::count(chosen.optimizers, name) > 1)
      throw usage_error("--optimizer: '" + name + "' is there twice");
  chosen.network.bandwidth = units.gigabits * 1e9 / 8.0;
  chosen.network.latency = units.microseconds * 1e-6;
  chosen.network.node_bandwidth = units.node_gigabytes * 1e9;
  chosen.memory_bandwidth = units.memory_gigabytes * 1e9;
  chosen.compute_seconds = units.compute_milliseconds * 1e-3;
  return chosen;
}

}  // namespace plan
