// Tests that runs of slamb_train that are stopped and continued end with the same bits, curve and traffic as runs without a
// stop.
#include "../checkpoints.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../common/output_file.hpp"
#include "../command_line.hpp"
#include "../optimizers.hpp"
#include "../report.hpp"
#include "../training.hpp"
#include "support/files.hpp"
#include "support/said.hpp"

namespace {

namespace fs = std::filesystem;

using test_support::names_in;
using test_support::said_by;
using test_support::temporary_folder;
using test_support::text_of_file;

const train::split_digits& data() {
  static const train::split_digits parts = train::split(train::read_digits(SLAMB_TRAIN_DATA));
  return parts;
}

train::optimizer_entry find_entry(const std::string& name) {
  train::settings chosen;
  chosen.optimizers = {name};
  return train::choose_optimizers(chosen).front();
}

train::settings short_run(const fs::path& folder) {
  train::settings chosen;
  chosen.ranks = 3;
  chosen.batch = 30;
  chosen.steps = 40;
  chosen.seeds = 1;
  chosen.local_steps = 15;
  chosen.checkpoint = folder.string();
  chosen.checkpoint_every = 7;
  return chosen;
}

train::outcome run(
    const train::settings& chosen, const train::optimizer_entry& entry, const fs::path& folder,
    const std::function<void(std::uint64_t)>& progress = [](std::uint64_t) {},
    const std::function<void(const std::string&)>& say = {}) {
  const train::task work{chosen, data(), 1, entry.learning_rate, progress, folder, say};
  train::outcome result = train::train(work, entry.maker(chosen, 1));
  result.optimizer = entry.name;
  return result;
}

// The table without the seconds, and the content of all files.
std::string report_of(const train::settings& chosen, const train::optimizer_entry& entry, train::outcome result) {
  result.seconds = 0.0;
  std::ostringstream all;
  train::print_table(all, chosen, {entry}, {result});
  train::write_csv(all, {result});
  train::write_json(all, chosen, {entry}, data(), {result});
  return all.str();
}

std::vector<std::string> files_of_step(int step) {
  std::vector<std::string> names;
  for (const char* rank : {"rank0", "rank1", "rank2"}) {
    names.push_back(rank + ("-step" + std::to_string(step)) + ".progress");
    names.push_back(rank + ("-step" + std::to_string(step)) + ".slamb");
  }
  return names;
}

struct stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Trains up to a step, at which rank 0 throws.
void run_until(std::uint64_t last, const train::settings& chosen, const train::optimizer_entry& entry,
               const fs::path& folder) {
  CHECK_THROWS_AS(run(chosen, entry, folder,
                      [last](std::uint64_t step) {
                        if (step == last) throw stopped("stopped");
                      }),
                  stopped);
}

// A training of SLAMB that is stopped, and continued in the same folder.
struct slamb_training {
  temporary_folder root{};
  fs::path folder = root.path() / "run";
  train::optimizer_entry entry = find_entry("slamb");
  train::settings chosen = short_run(root.path());
  std::string expected = report_of(chosen, entry, run(chosen, entry, {}));  // of a run without a stop
  std::vector<std::string> said{};                                          // messages to the user

  void run_until(std::uint64_t last) {
    ::run_until(last, chosen, entry, folder);
    chosen.resume = true;
  }
  std::string go_on() {
    const auto say = [this](const std::string& line) { said.push_back(line); };
    return report_of(chosen, entry,
                     run(
                         chosen, entry, folder, [](std::uint64_t) {}, say));
  }
};

}  // namespace

TEST_CASE("slamb_train: a stopped run resumes, with the report of an uninterrupted run") {
  for (const train::optimizer_entry& entry : train::choose_optimizers({})) {
    CAPTURE(entry.name);
    const temporary_folder root;
    const fs::path folder = root.path() / "run";
    train::settings chosen = short_run(root.path());
    const std::string expected = report_of(chosen, entry, run(chosen, entry, {}));
    run_until(17, chosen, entry, folder);
    CHECK(names_in(folder) == files_of_step(14));
    chosen.resume = true;
    run_until(25, chosen, entry, folder);  // stopped again, after continuing from step 14
    CHECK(names_in(folder) == files_of_step(21));
    std::uint64_t steps = 0;
    CHECK(report_of(chosen, entry, run(chosen, entry, folder, [&steps](std::uint64_t) { ++steps; })) == expected);
    CHECK(steps == 40);
    CHECK(names_in(folder) == files_of_step(40));
    CHECK(report_of(chosen, entry, run(chosen, entry, folder)) == expected);  // continues from the end
  }
}

TEST_CASE("slamb_train: a stopped run with shards resumes, with the report of an uninterrupted run") {
  for (const train::optimizer_entry& entry : train::choose_optimizers({})) {
    CAPTURE(entry.name);
    const temporary_folder root;
    const fs::path folder = root.path() / "run";
    train::settings chosen = short_run(root.path());
    chosen.ranks = 2;
    chosen.shards = 3;
    const std::string expected = report_of(chosen, entry, run(chosen, entry, {}));
    run_until(17, chosen, entry, folder);
    CHECK(names_in(folder).size() == 2 * 6);  // of each rank the progress and the state
    CHECK(fs::exists(folder / "rank5-step14.slamb"));
    chosen.resume = true;
    CHECK(report_of(chosen, entry, run(chosen, entry, folder)) == expected);
  }
}

TEST_CASE("slamb_train: other shards than those of the checkpoints are rejected, by the settings and by each state") {
  const temporary_folder root;
  train::settings chosen = short_run(root.path() / "runs");
  const fs::path folder = fs::path(chosen.checkpoint) / "lamb-seed1";
  const train::optimizer_entry entry = find_entry("lamb");
  chosen.ranks = 2;
  chosen.shards = 3;
  train::prepare_checkpoints(chosen, data());
  run_until(17, chosen, entry, folder);
  chosen.resume = true;
  CHECK(said_by<std::exception>([&] { train::prepare_checkpoints(chosen, data()); }) == "nothing was thrown");
  chosen.shards = 2;
  CHECK(said_by<train::usage_error>([&] { train::prepare_checkpoints(chosen, data()); }) ==
        "--resume: " + chosen.checkpoint + " was written with --shards 3, but this run has --shards 2");

  // The state says so too, where the settings have been changed. Six ranks have files in either case.
  chosen.ranks = 3;
  std::uint64_t steps = 0;
  const std::string said =
      said_by<std::exception>([&] { run(chosen, entry, folder, [&steps](std::uint64_t) { ++steps; }); });
  CAPTURE(said);
  CHECK(said.find("slamb: load_checkpoint() was given ") == 0);
  CHECK(said.find(" of 3") != std::string::npos);
  CHECK(said.find("a rank can load only the state of its own shard, of as many shards") != std::string::npos);
  CHECK(steps == 0);
}

TEST_CASE("slamb_train: checkpoints do not change an uninterrupted run") {
  const temporary_folder root;
  const train::settings chosen = short_run(root.path());
  const train::optimizer_entry entry = find_entry("slamb");
  CHECK(report_of(chosen, entry, run(chosen, entry, root.path() / "run")) ==
        report_of(chosen, entry, run(chosen, entry, {})));
}

TEST_CASE("slamb_train: resumes from the last step that all ranks have files of") {
  slamb_training of;
  of.run_until(13);
  const fs::path seventh = of.root.path() / "seventh";
  fs::copy(of.folder, seventh);
  of.run_until(20);
  // As if ranks 0 and 1 had written step 14 and rank 2 had not, when all were killed.
  for (const char* rank : {"rank0", "rank1", "rank2"})
    for (const char* ending : {".slamb", ".progress"})
      fs::copy_file(seventh / (std::string(rank) + "-step7" + ending),
                    of.folder / (std::string(rank) + "-step7" + ending));
  fs::remove(of.folder / "rank2-step14.slamb");
  std::ofstream(of.folder / "rank2-step14.slamb.partial-1-0") << "half";
  CHECK(of.go_on() == of.expected);
  CHECK(names_in(of.folder) == files_of_step(40));
  CHECK(of.said.empty());
}

TEST_CASE("slamb_train: a run that was stopped while it wrote the first checkpoint starts over, with a message") {
  slamb_training of;
  of.run_until(13);
  CHECK(names_in(of.folder) == files_of_step(7));
  fs::remove(of.folder / "rank1-step7.slamb");
  CHECK(of.go_on() == of.expected);
  CHECK(of.said ==
        std::vector<std::string>{"--resume: " + of.folder.string() +
                                 " has no checkpoint of rank 1, and other ranks have at most their first, as when a "
                                 "run is stopped while ranks write it: this training begins anew"});
  CHECK(names_in(of.folder) == files_of_step(40));
  fs::remove_all(of.folder);
  CHECK(of.go_on() == of.expected);  // the training had not begun
  CHECK(of.go_on() == of.expected);  // continues from its end
  CHECK(of.said.size() == 1);
}

TEST_CASE("slamb_train: an error names the rank and folder of lost files, and nothing else is deleted") {
  slamb_training of;
  of.run_until(17);
  const fs::path backup = of.root.path() / "backup";
  const std::string folder = of.folder.string();
  fs::copy(of.folder, backup);
  for (const std::string rank : {"rank0", "rank2"}) {
    CAPTURE(rank);
    for (const std::string& name : files_of_step(14))
      if (name.starts_with(rank)) fs::remove(of.folder / name);
    const std::vector<std::string> left = names_in(of.folder);
    const std::string its_number = rank.substr(4), other = its_number == "0" ? "1" : "0";
    CHECK(said_by<std::runtime_error>([&of] { of.go_on(); }) ==
          "--resume: " + folder + " has no checkpoint of rank " + its_number + ", but rank " + other +
              " has one of step 14, which is not its first: files of rank " + its_number +
              " have been lost; restore them, or delete " + folder + " to begin this training anew");
    CHECK(names_in(of.folder) == left);
    fs::copy(backup, of.folder, fs::copy_options::skip_existing | fs::copy_options::recursive);
  }
  CHECK(of.go_on() == of.expected);
}

TEST_CASE("slamb_train: a damaged checkpoint is rejected by name") {
  const temporary_folder root;
  const fs::path folder = root.path() / "run";
  const train::optimizer_entry entry = find_entry("lamb");
  train::settings chosen = short_run(root.path());
  chosen.ranks = 1;
  run(chosen, entry, folder);
  chosen.resume = true;
  const fs::path state = folder / "rank0-step40.slamb", progress = folder / "rank0-step40.progress";
  const auto said = [&] { return said_by<std::exception>([&] { run(chosen, entry, folder); }); };
  CHECK(said() == "nothing was thrown");

  const std::string text = text_of_file(progress);
  for (std::size_t size = 0; size + 4 < text.size(); size += 61) {
    std::ofstream(progress) << text.substr(0, size);
    if (!said().starts_with("--resume: " + progress.string() + " cannot be read: ")) FAIL_CHECK("size " << size);
  }
  std::ofstream(progress) << "step 39\n" << text.substr(text.find('\n') + 1);
  CHECK(said() == "--resume: " + progress.string() + " cannot be read: it belongs to another step");
  std::ofstream(progress) << text;
  CHECK(said() == "nothing was thrown");

  std::fstream bytes(state, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(5000);
  const int byte = bytes.get();
  bytes.seekp(5000);
  bytes.put(static_cast<char>(byte ^ 1));
  bytes.close();
  CHECK(said() == "slamb: load_checkpoint() was given " + state.string() +
                      ", which holds a state whose bytes have changed since it was saved");
}

TEST_CASE("slamb_train: a folder of checkpoints belongs to one run, and another run's options are rejected") {
  const temporary_folder root;
  const fs::path folder = root.path() / "new" / "one";
  train::settings chosen = short_run(folder);
  const auto said = [&chosen] {
    return said_by<train::usage_error>([&] { train::prepare_checkpoints(chosen, data()); });
  };
  chosen.resume = true;
  CHECK(said() == "--resume: " + folder.string() +
                      " has no checkpoints; leave out --resume to begin a run that writes them there");
  chosen.resume = false;
  CHECK(said() == "nothing was thrown");
  CHECK(said() == "--checkpoint: " + folder.string() +
                      " has the checkpoints of another run; --resume goes on from them, or name another folder");
  chosen.resume = true;
  CHECK(said() == "nothing was thrown");

  const std::string begin = "--resume: " + folder.string() + " was written with ";
  train::settings other = chosen;
  const auto differs = [&](const auto& change) {
    chosen = other;
    change(chosen);
    return said();
  };
  CHECK(differs([](train::settings& s) { s.batch = 31; }) == begin + "--batch 30, but this run has --batch 31");
  CHECK(differs([](train::settings& s) { s.steps = 50; }) == begin + "--steps 40, but this run has --steps 50");
  CHECK(differs([](train::settings& s) { s.ranks = 2; }) == begin + "--ranks 3, but this run has --ranks 2");
  CHECK(differs([](train::settings& s) { s.learning_rate = 0.5; }) ==
        begin + "--learning-rate unset, but this run has --learning-rate 0.5");
  CHECK(differs([](train::settings& s) { s.k = 0.2; }).starts_with(begin + "--k 0.1"));
  CHECK(differs([](train::settings& s) { s.precision = "bf16"; }) ==
        begin + "--precision float32, but this run has --precision bf16");
  CHECK(differs([](train::settings& s) { s.seeds = 9; }) == "nothing was thrown");
  CHECK(differs([](train::settings& s) { s.optimizers = {"lamb"}; }) == "nothing was thrown");
  CHECK(differs([](train::settings& s) { s.checkpoint_every = 1; }) == "nothing was thrown");
  chosen = other;
  train::split_digits changed = data();
  changed.training.pixels[5] += 1.0F;
  CHECK(said_by<train::usage_error>([&] {
          train::prepare_checkpoints(chosen, changed);
        }).starts_with(begin + "--data of "));

  std::ofstream(root.path() / "file") << "no folder";
  chosen.resume = false;
  chosen.checkpoint = (root.path() / "file" / "sub").string();
  CHECK(said_by<train::output_error>([&] {
          train::prepare_checkpoints(chosen, data());
        }).starts_with("--checkpoint: " + chosen.checkpoint + " cannot be made: "));
}

TEST_CASE("slamb_train: a stopped run with parameters of 16 bits resumes, with the report of an uninterrupted run") {
  for (const std::string name : {"lamb", "slamb", "one_bit_lamb", "zero_one_adam"})
    for (const std::string rounding : {"masters", "stochastic"}) {
      CAPTURE(name);
      CAPTURE(rounding);
      const temporary_folder root;
      const fs::path folder = root.path() / "run";
      const train::optimizer_entry entry = find_entry(name);
      train::settings chosen = short_run(root.path());
      chosen.precision = "bf16";
      chosen.rounding = rounding;
      const std::string expected = report_of(chosen, entry, run(chosen, entry, {}));
      run_until(17, chosen, entry, folder);
      chosen.resume = true;
      CHECK(report_of(chosen, entry, run(chosen, entry, folder)) == expected);
    }
}

TEST_CASE("slamb_train: auto rejects checkpoints, because it may choose another optimizer when it resumes") {
  train::settings chosen;
  chosen.optimizers = {"auto"};
  CHECK(said_by<train::usage_error>([&] { train::choose_optimizers(chosen); }) == "nothing was thrown");
  chosen.checkpoint = "d";
  CHECK(said_by<train::usage_error>([&] { train::choose_optimizers(chosen); }) ==
        "--checkpoint: auto chooses by measured time, and may choose another optimizer when the run is resumed; name "
        "lamb or slamb");
}
