#include "command_line.hpp"

#include <cstdint>
#include <limits>

#include "../common/command_line.hpp"

namespace train {

namespace {

using namespace programs;

constexpr std::uint64_t most_steps = 1'000'000;

void add_optimizer_options(command_line& line, settings& into, const known_names& known) {
  line.add_names("--optimizer", into.optimizers,
                 "Optimizers from " + joined(known.optimizers) +
                     "; repeat it or join by commas. auto is lamb, or slamb if its first steps are faster "
                     "[all but slamb_by_differences and auto]")
      ->check(one_of(known.optimizers));
  line.add_names("--compressor", into.compressors,
                 "Compressor of the gradient or momentum, one of " + joined(known.compressors) +
                     "; repeat it or join by commas [each optimizer's own]")
      ->check(one_of(known.compressors));
}

void add_training_options(command_line& line, settings& into) {
  const auto number = [&line](const std::string& name, auto& value, const std::string& text) {
    return line.add(name, value, text, "N");
  };
  number("--ranks", into.ranks,
         "Ranks, each a thread, or a process where mpirun starts several, with a shard of the training set")
      ->check(integer_in(1, 64));
  number("--shards", into.shards,
         "Ranks that hold a model together, as by FSDP: each has a shard of the parameters, and --ranks is the number "
         "of ranks that hold the same shard")
      ->check(integer_in(1, 64));
  number("--batch", into.batch, "Images a step, over all ranks")->check(integer_in(1, most_steps));
  number("--steps", into.steps, "Steps a run")->check(integer_in(1, most_steps));
  number("--learning-rate", into.learning_rate, "Peak learning rate [each optimizer's own]")
      ->type_name("X")
      ->check(number_in("(0, 1000000]", 0.0, 1e6));
  line.add("--schedule", into.schedule, "After the warm-up: constant, polynomial, cosine or step", "NAME")
      ->check(one_of(schedule_names));
  number("--warmup", into.warmup, "Steps of linear warm-up [a tenth of the steps]")
      ->check(integer_in(0, most_steps - 1));
  number("--weight-decay", into.weight_decay, "Weight decay")
      ->type_name("X")
      ->check(number_in("[0, 1000000]", 0.0, 1e6));
  line.add("--precision", into.precision, "Type of the stored parameters and gradients: float32, bf16 or fp16", "NAME")
      ->check(one_of(precision_names));
  line.add_option(
          "--rounding", into.rounding,
          "Parameters of 16 bits: masters, which keeps a float copy of them, or stochastic, which rounds them up "
          "or down by chance [masters]")
      ->type_name("NAME")
      ->check(one_of(rounding_names));
  line.add_option("--loss-scale", into.loss_scale,
                  "Gradients of 16 bits are stored times this, so that small ones are not lost [fp16: 1024, bf16: 1]")
      ->type_name("X")
      ->check(number_in("[1, 16777216]", 1.0, 16777216.0));
  constexpr auto largest_seed = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  number("--seed", into.seed, "The first seed")->check(integer_in(0, largest_seed));
  number("--seeds", into.seeds, "Number of seeds, counted from the first")->check(integer_in(1, 1000));
  line.add_flag("--held-out", into.held_out,
                "Test on a fifth of the training set that is held out, to choose settings: the test set has no part");
}

void add_algorithm_options(command_line& line, settings& into) {
  line.add("--k", into.k, "Sparsifiers: part of the elements sent at each step", "X")
      ->check(number_in("[0.0001, 1]", 1e-4, 1.0));
  line.add("--block", into.block, "random_k: contiguous elements that are sent together", "N")
      ->check(integer_in(1, std::uint64_t{1} << 20U));
  line.add("--beta3", into.beta3, "SLAMB: decay of trust in momentum not lately sent", "X")
      ->check(number_in("[0, 1]", 0.0, 1.0));
  line.add("--update-bound", into.update_bound,
           "SLAMB, 1-bit and 0/1 optimizers: the largest update of an element, in learning rates: adam, off or a "
           "number. adam is "
           "the largest that Adam could make",
           "X")
      ->check(expecting("adam, off or a number in [1e-30, 1000000]", [](const std::string& text) {
        double value = 0.0;
        return text == "adam" || text == "off" || (read_number(text, value) && value >= 1e-30 && value <= 1e6);
      }));
  line.add("--local-steps", into.local_steps,
           "SLAMB: steps from one exchange of the parameters to the next (H) [50; of slamb_by_differences 2]", "N")
      ->check(integer_in(1, most_steps));
  line.add("--one-bit-epsilon", into.one_bit_epsilon,
           "1-bit and 0/1 optimizers, and SLAMB with signs: epsilon [the optimizer's own]", "X")
      ->check(number_in("[1e-30, 1]", 1e-30, 1.0));
  line.add("--one-bit-warmup", into.one_bit_warmup,
           "1-bit Adam and LAMB: steps before compression begins [a fifth of the steps]", "N")
      ->check(integer_in(1, most_steps));
  line.add("--one-bit-threshold", into.one_bit_threshold,
           "1-bit Adam and LAMB: begin sooner, once the variance of a step is this part of that a tenth of the steps "
           "before [never]",
           "X")
      ->check(number_in("(0, 1]", 0.0, 1.0));
  line.add("--freeze-step", into.freeze_step, "0/1 Adam: when the variance is frozen [a fifth of the steps]", "N")
      ->check(integer_in(0, most_steps));
  line.add("--variance-update-scaler", into.variance_update_scaler,
           "0/1 Adam: refreshes of the variance before their interval doubles", "N")
      ->check(integer_in(1, most_steps));
  line.add("--local-step-scaler", into.local_step_scaler,
           "0/1 Adam: steps before the interval of exchanges doubles [a fifth of the steps]", "N")
      ->check(integer_in(1, most_steps));
  line.add("--local-step-clipper", into.local_step_clipper, "0/1 Adam: the longest interval of exchanges", "N")
      ->check(integer_in(1, most_steps));
}

void add_file_options(command_line& line, settings& into) {
  const auto file = [&line](const std::string& name, std::string& value, const std::string& text) {
    return line.add_option(name, value, text)->type_name("FILE")->check(file_name());
  };
  file("--data", into.data, "Images: CSV rows of 64 pixels (0...16) and a label (0...9)")->capture_default_str();
  file("--json", into.json, "Write settings and results");
  file("--csv", into.csv, "Write loss, bytes sent, collectives and phase by step");
  file("--plot", into.plot, "Draw the loss against the bytes sent, as SVG (by gnuplot)");
  line.add_option("--checkpoint", into.checkpoint,
                  "Keep what is needed to go on in this folder: of each run and rank the optimizer and the parameters")
      ->type_name("DIR")
      ->check(file_name());
  line.add_option("--checkpoint-every", into.checkpoint_every,
                  "Steps from one checkpoint to the next; the last step has one too [a tenth of the steps]")
      ->type_name("N")
      ->check(integer_in(1, most_steps));
  line.add_flag("--resume", into.resume, "Go on from the checkpoints in the folder of --checkpoint");
  line.add_flag("--hash", into.hash, "Print a hash of the final parameters of each run");
}

constexpr int most_ranks = 64;

// Processes are divided among the shards.
void divide_processes(const command_line& line, settings& chosen, int processes) {
  if (processes % chosen.shards != 0)
    throw usage_error("--shards: " + std::to_string(chosen.shards) + " does not divide the " +
                      std::to_string(processes) + " processes that were started");
  if (line.get_option("--ranks")->count() == 0) chosen.ranks = processes / chosen.shards;
  if (chosen.all_ranks() == processes) return;
  throw usage_error("--ranks: " + std::to_string(chosen.ranks) +
                    (chosen.shards == 1 ? "" : " of " + std::to_string(chosen.shards) + " shards") + ", but " +
                    std::to_string(processes) + " processes were started, and each is a rank");
}

void check_together(const settings& chosen) {
  refuse_repetition("--optimizer", chosen.optimizers);
  refuse_repetition("--compressor", chosen.compressors);
  if (chosen.warmup_steps() >= chosen.steps) {
    throw usage_error("--warmup: " + std::to_string(chosen.warmup_steps()) + " is not in [0, " +
                      std::to_string(chosen.steps - 1) + "]: it must be less than --steps");
  }
  if (chosen.all_ranks() > most_ranks) {
    throw usage_error("--shards: " + std::to_string(chosen.shards) + " shards on " + std::to_string(chosen.ranks) +
                      " ranks each (--ranks) are " + std::to_string(chosen.all_ranks()) + " ranks, more than " +
                      std::to_string(most_ranks));
  }
  if (chosen.batch < static_cast<std::uint64_t>(chosen.all_ranks())) {
    throw usage_error("--batch: " + std::to_string(chosen.batch) + " is not >= --ranks" +
                      (chosen.shards == 1 ? "" : " times --shards") + ", which is " +
                      std::to_string(chosen.all_ranks()));
  }
  if (!chosen.has_16_bits() && (chosen.rounding || chosen.loss_scale)) {
    throw usage_error(std::string(chosen.rounding ? "--rounding" : "--loss-scale") +
                      ": --precision float32 stores no numbers of 16 bits; say --precision bf16 or --precision fp16");
  }
  if (chosen.checkpoint.empty() && (chosen.resume || chosen.checkpoint_every)) {
    throw usage_error(std::string(chosen.resume ? "--resume" : "--checkpoint-every") +
                      ": no folder is named; say --checkpoint DIR");
  }
  if (!chosen.plot.empty() && chosen.ranks == 1) {
    throw usage_error("--plot: a single rank sends nothing to plot against; --ranks must be in [2, 64]");
  }
}

}  // namespace

std::optional<settings> parse_command_line(int argc, const char* const* argv, const known_names& known, int processes) {
  settings chosen;
  if (processes > 0) chosen.ranks = processes;
  command_line line("slamb_train",
                    "Trains a small network on images of handwritten digits, with every optimizer of the library on "
                    "several ranks, and compares their accuracy and what they send. Ranks are threads of this process, "
                    "or the processes that mpirun starts.");
  add_optimizer_options(line, chosen, known);
  add_training_options(line, chosen);
  add_algorithm_options(line, chosen);
  add_file_options(line, chosen);
  if (!line.read(argc, argv)) return std::nullopt;
  if (processes > 0) divide_processes(line, chosen, processes);
  check_together(chosen);
  return chosen;
}

void check_against_data(const settings& chosen, const split_digits& data) {
  const std::size_t rows = data.training.rows();
  const std::string has = " (" + chosen.data + " has " + std::to_string(rows + data.test.rows()) + " rows, " +
                          std::to_string(rows) + " of them for training)";
  const std::string ranks = std::to_string(chosen.all_ranks());
  if (rows < static_cast<std::size_t>(chosen.all_ranks())) {
    throw data_error(chosen.data + ": expected a training row for each of the ranks, --ranks" +
                     (chosen.shards == 1 ? "" : " times --shards") + " = " + ranks + has);
  }
  if (chosen.batch > rows) {
    throw usage_error("--batch: " + std::to_string(chosen.batch) + " is not in [" + ranks + ", " +
                      std::to_string(rows) + "]" + has);
  }
}

}  // namespace train
