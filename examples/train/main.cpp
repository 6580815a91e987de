// slamb_train: trains a small network on handwritten digits with every optimizer of the library, on several ranks, and
// compares accuracy and bytes sent. Exit status: 0; 1 for what went wrong at work; 2 for a wrong command line.
#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../warm_up_note.hpp"
#include "checkpoints.hpp"
#include "command_line.hpp"
#include "digits.hpp"
#include "optimizers.hpp"
#include "output_file.hpp"
#include "plot.hpp"
#include "processes.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace {

using train::output_file;
using train::settings;

// The files that are wanted, found writable.
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

// With a threshold the warm-up may end sooner.
void say_what_is_not_compressed(const settings& chosen, const std::vector<train::optimizer_entry>& entries) {
  if (chosen.one_bit_threshold) return;
  std::vector<std::string> names;
  for (const train::optimizer_entry& entry : entries) names.push_back(entry.name);
  const std::string note = warm_up_note(names, chosen.one_bit_warmup_steps(), "--one-bit-warmup", chosen.steps);
  if (!note.empty()) std::cerr << "slamb_train: " << note << '\n';
}

void require_written() {
  if (!std::cout.flush()) throw train::output_error("the standard output could not be written");
}

// The first of several processes writes what there is to write. Returns an exit status, which is not 0 if another process
// could not begin.
int run(const settings& chosen, train::processes* ranks) {
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
      train_all(chosen, entries, data, ranks != nullptr ? ranks->runner() : train::run_threads);
  train::print_table(std::cout, chosen, entries, outcomes);
  if (files.json)
    files.json->write([&](std::ostream& out) { train::write_json(out, chosen, entries, data, outcomes); });
  if (files.csv) files.csv->write([&](std::ostream& out) { train::write_csv(out, outcomes); });
  if (files.plot) {
    files.plot->write_with(
        [&](const std::filesystem::path& target) { train::draw_plot(chosen, entries, outcomes, target); });
  }
  require_written();
  return 0;
}

int run_program(int argc, char** argv, train::processes* ranks) {
  try {
    const std::vector<std::string_view> optimizers = train::optimizer_names();
    const std::vector<std::string_view> compressors = train::compressor_names();
    const int size = ranks == nullptr ? 0 : ranks->size();
    const std::optional<settings> chosen = train::parse_command_line(argc, argv, {optimizers, compressors}, size);
    if (chosen) return run(*chosen, ranks);
    require_written();  // help or the version
    return ranks == nullptr ? 0 : ranks->meet(0);
  } catch (const train::usage_error& error) {
    if (ranks == nullptr || ranks->rank() == 0)
      std::cerr << "slamb_train: " << error.what() << "\nslamb_train --help says the options\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "slamb_train: " << error.what() << '\n';
    return 1;
  }
}

// What goes wrong before the training is known to all processes, and they end as usual. Later it may be of one alone: that ends
// all of them.
int run_program_of(train::processes& ranks, int argc, char** argv) {
  static std::ofstream nowhere("/dev/null");
  if (ranks.rank() != 0) std::cout.rdbuf(nowhere.rdbuf());
  const int status = run_program(argc, argv, &ranks);
  if (status != 0 && !ranks.have_met()) return ranks.meet(status);
  if (status != 0 && !ranks.start_failed()) ranks.end_all(status);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error to report, not the end of the process
  try {
    const std::unique_ptr<train::processes> ranks = train::find_processes(argc, argv);
    return ranks ? run_program_of(*ranks, argc, argv) : run_program(argc, argv, nullptr);
  } catch (const std::exception& error) {
    std::cerr << "slamb_train: " << error.what() << '\n';
    return 1;
  }
}
