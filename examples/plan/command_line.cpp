#include "command_line.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "../common/command_line.hpp"
#include "models.hpp"

namespace plan {

namespace {

using namespace programs;

constexpr std::uint64_t most_steps = 1'000'000;

void add_training_options(command_line& line, settings& into, std::span<const std::string_view> optimizers) {
  const auto number = [&line](const std::string& name, auto& value, const std::string& text) {
    return line.add(name, value, text, "N");
  };
  CLI::Option* const model = line.add("--model", into.model, "The model: " + joined(model_names()), "NAME");
  model->check(one_of(model_names()));
  line.add_option("--shapes", into.shapes, "Tensors of your own: lines of name D0 D1 ...; # begins a comment")
      ->type_name("FILE")
      ->excludes(model)
      ->check(file_name());
  line.add_names("--optimizer", into.optimizers,
                 "Optimizers from " + joined(optimizers) +
                     "; repeat it or join by commas [all, with --shards without +partition]")
      ->check(one_of(optimizers));
  number("--steps", into.steps, "Steps of the training")->check(integer_in(1, most_steps));
  number("--ranks", into.ranks, "Ranks; with --shards, those that hold the same shard")
      ->check(integer_in(1, 1'000'000));
  number("--shards", into.shards,
         "Shards of the model, as by FSDP or tensor parallelism: so many ranks of a node hold it together")
      ->check(integer_in(1, 1024));
  number("--value-bytes", into.value_bytes,
         "Bytes of a value that is summed: 4 as the library sends it, 2 where a communicator sums in fp16")
      ->check(one_of(std::array{"2", "4"}));
  line.add("--precision", into.precision, "Type of the stored parameters and gradients: float32, bf16 or fp16", "NAME")
      ->check(one_of(precision_names));
  line.add_option("--rounding", into.rounding,
                  "Parameters of 16 bits: masters, with float copies, or stochastic, without [masters]")
      ->type_name("NAME")
      ->check(one_of(rounding_names));
  line.add("--moments", into.moments, "m and v: float32, bf16-momentum (v is float32) or 8-bit", "NAME")
      ->check(one_of(moments_names));
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

// Options are in customary units; settings are in bytes and seconds.
struct spoken {
  double gigabits = 25.0;
  double microseconds = 20.0;
  double node_gigabytes = 300.0;
  double memory_gigabytes = 1500.0;
  double compute_milliseconds = 200.0;
};

void add_machine_options(command_line& line, settings& into, spoken& units) {
  const auto number = [&line](const std::string& name, double& value, const std::string& text, bool zero) {
    line.add(name, value, text, "X")->check(zero ? number_in("[0, 1e9]", 0.0, 1e9) : number_in("(0, 1e9]", 0.0, 1e9));
  };
  number("--bandwidth", units.gigabits, "Gbit/s of a node's link, in each direction", false);
  number("--latency", units.microseconds, "Microseconds of a hop from node to node", true);
  line.add("--ranks-per-node", into.network.ranks_per_node, "Ranks that share a node's link", "N")
      ->check(integer_in(1, 1'000'000));
  number("--node-bandwidth", units.node_gigabytes, "GB/s of a rank to others on its node", false);
  number("--memory-bandwidth", units.memory_gigabytes, "GB/s of a rank's memory", false);
  number("--compute-ms", units.compute_milliseconds, "Milliseconds of a step's forward and backward pass", true);
  line.add_option("--json", into.json, "Write settings and results")->type_name("FILE")->check(file_name());
}

}  // namespace

std::optional<settings> parse_command_line(int argc, const char* const* argv,
                                           std::span<const std::string_view> optimizers) {
  settings chosen;
  spoken units;
  command_line line("slamb_plan",
                    "Plans a training: what each optimizer sends, how long a step takes on a network, and under which "
                    "bandwidth it is faster than dense LAMB.");
  add_training_options(line, chosen, optimizers);
  add_machine_options(line, chosen, units);
  if (!line.read(argc, argv)) return std::nullopt;
  const bool in_shards = chosen.shards > 1;
  if (chosen.optimizers.empty())
    for (const std::string_view name : optimizers)
      if (!in_shards || !is_partitioned(name)) chosen.optimizers.emplace_back(name);
  programs::refuse_repetition("--optimizer", chosen.optimizers);
  for (const std::string& name : chosen.optimizers)
    if (in_shards && is_partitioned(name))
      throw usage_error("--shards: --optimizer " + name + " cuts whole tensors itself; plan it without --shards");
  if (chosen.rounding && chosen.precision == "float32")
    throw usage_error(
        "--rounding: --precision float32 stores no numbers of 16 bits; say --precision bf16 or --precision fp16");
  if (chosen.network.ranks_per_node % chosen.shards != 0)
    throw usage_error("--shards: " + std::to_string(chosen.shards) + " does not divide --ranks-per-node, which is " +
                      std::to_string(chosen.network.ranks_per_node) +
                      ": the ranks that hold a model together share a node");
  chosen.network.bandwidth = units.gigabits * 1e9 / 8.0;
  chosen.network.latency = units.microseconds * 1e-6;
  chosen.network.node_bandwidth = units.node_gigabytes * 1e9;
  chosen.memory_bandwidth = units.memory_gigabytes * 1e9;
  chosen.compute_seconds = units.compute_milliseconds * 1e-3;
  return chosen;
}

}  // namespace plan
