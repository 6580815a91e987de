// slamb_train: trains a small network on handwritten digits with every optimizer of the library, on several ranks, and compares
// accuracy and bytes sent. Exit status: 0; 1 for an error at work; 2 for a wrong command line.
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../common/output_file.hpp"
#include "../common/program.hpp"
#include "../common/warm_up_note.hpp"
#include "checkpoints.hpp"
#include "command_line.hpp"
#include "digits.hpp"
#include "optimizers.hpp"
#include "plot.hpp"
#include "processes.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace {

using programs::output_file;
using train::settings;

// The output files that were asked for. They can be written.
struct outputs {
  std::optional<output_file> json;
  std::optional<output_file> csv;
  std::optional<output_file> plot;
};

outputs prepare_outputs(const settings& chosen) {
  outputs files;
  std::vector<std::filesystem::path> taken{std::filesystem::weakly_canonical(std::filesystem::absolute(chosen.data))};
  const auto prepare = [&](std::optional<output_file>& file, const std::string& option, const std::string& name) {
    if (name.empty()) return;
    file.emplace(option, name);
    for (const std::filesystem::path& other : taken) {
      if (file->target() == other) throw train::usage_error(option + ": " + name + " is named by another option too");
    }
    taken.push_back(file->target());
  };
  prepare(files.json, "--json", chosen.json);
  prepare(files.csv, "--csv", chosen.csv);
  prepare(files.plot, "--plot", chosen.plot);
  if (files.plot) train::require_gnuplot();
  return files;
}

std::vector<train::outcome> train_all(const settings& chosen, const std::vector<train::optimizer_entry>& entries,
                                      const train::split_digits& data, const train::rank_runner& run_ranks) {
  std::vector<train::outcome> outcomes;
  train::progress_bar bar(chosen.steps * chosen.seeds * entries.size());
  for (const train::optimizer_entry& entry : entries) {
    for (std::uint64_t seed = chosen.seed; seed < chosen.seed + chosen.seeds; ++seed) {
      bar.begin(entry.name + ", seed " + std::to_string(seed));
      const double learning_rate = chosen.learning_rate.value_or(entry.learning_rate);
      const std::filesystem::path folder =
          chosen.checkpoint.empty()
              ? std::filesystem::path()
              : std::filesystem::path(chosen.checkpoint) / (entry.name + "-seed" + std::to_string(seed));
      const train::task work{
          chosen,
          data,
          seed,
          learning_rate,
          [&bar](std::uint64_t) { bar.advance(); },
          folder,
          [&bar](const std::string& line) { bar.say(line); },
      };
      outcomes.push_back(train::train(work, entry.maker(chosen, seed), run_ranks));
      outcomes.back().optimizer = entry.name;
    }
  }
  return outcomes;
}

// Prints nothing with a threshold, because the warm-up may then end sooner.
void say_what_is_not_compressed(const settings& chosen, const std::vector<train::optimizer_entry>& entries) {
  if (chosen.one_bit_threshold) return;
  std::vector<std::string> names;
  for (const train::optimizer_entry& entry : entries) names.push_back(entry.name);
  const std::string note =
      programs::warm_up_note(names, chosen.one_bit_warmup_steps(), "--one-bit-warmup", chosen.steps);
  if (!note.empty()) std::cerr << "slamb_train: " << note << '\n';
}

// Trains, and writes the results; of several processes only the first writes. Returns an exit status, which is not 0 if another
// process could not begin.
int run(const settings& chosen, programs::processes* ranks) {
  const std::vector<train::optimizer_entry> entries = train::choose_optimizers(chosen);
  train::split_digits data = train::split(train::read_digits(std::filesystem::path(chosen.data)));
  if (chosen.held_out) data = train::split(data.training);
  train::check_against_data(chosen, data);
  const bool writes = ranks == nullptr || ranks->rank() == 0;
  const outputs files = writes ? prepare_outputs(chosen) : outputs{};
  if (writes) train::prepare_checkpoints(chosen, data);
  if (const int status = ranks == nullptr ? 0 : ranks->meet(0); status != 0) return status;

  if (writes) say_what_is_not_compressed(chosen, entries);
  train::print_settings(std::cout, chosen, entries, data);
  const std::vector<train::outcome> outcomes =
      train_all(chosen, entries, data, ranks != nullptr ? train::run_processes : train::run_threads);
  train::print_table(std::cout, chosen, entries, outcomes);
  if (files.json)
    files.json->write([&](std::ostream& out) { train::write_json(out, chosen, entries, data, outcomes); });
  if (files.csv) files.csv->write([&](std::ostream& out) { train::write_csv(out, outcomes); });
  if (files.plot) {
    files.plot->write_with(
        [&](const std::filesystem::path& target) { train::draw_plot(chosen, entries, outcomes, target); });
  }
  programs::require_written();
  return 0;
}

int run_program(int argc, char** argv, programs::processes* ranks) {
  const std::vector<std::string_view> optimizers = train::optimizer_names();
  const std::vector<std::string_view> compressors = train::compressor_names();
  const int size = ranks == nullptr ? 0 : ranks->size();
  const std::optional<settings> chosen = train::parse_command_line(argc, argv, {optimizers, compressors}, size);
  if (chosen) return run(*chosen, ranks);
  programs::require_written();  // help or the version
  return ranks == nullptr ? 0 : ranks->meet(0);
}

}  // namespace

int main(int argc, char** argv) {
  return programs::exit_status("slamb_train", [&] {
    const std::unique_ptr<programs::processes> ranks = train::find_processes(argc, argv);
    if (!ranks) return run_program(argc, argv, nullptr);
    return ranks->run([&] {
      return programs::exit_status(
          "slamb_train", [&] { return run_program(argc, argv, ranks.get()); }, "", ranks->rank() == 0);
    });
  });
}
