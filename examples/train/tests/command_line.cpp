// Tests of the command line of slamb_train: the settings, and the errors for wrong values.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "../command_line.hpp"

namespace {

constexpr std::array<std::string_view, 3> optimizers{"alpha", "beta", "gamma"};
constexpr std::array<std::string_view, 2> compressors{"none", "rice"};

train::settings parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "slamb_train");
  return train::parse_command_line(static_cast<int>(arguments.size()), arguments.data(), {optimizers, compressors})
      .value();
}

void check_refused(const std::vector<const char*>& arguments, const std::string& message) {
  std::string said = "nothing was thrown";
  try {
    parse(arguments);
  } catch (const train::usage_error& error) {
    said = error.what();
  }
  CAPTURE(said);
  CAPTURE(message);
  CHECK(said.find(message) != std::string::npos);
}

}  // namespace

TEST_CASE("command line: has 4 ranks, at least 5 seeds and parts of the steps by default") {
  const train::settings chosen = parse({});
  CHECK(chosen.optimizers.empty());
  CHECK(chosen.compressors.empty());
  CHECK(chosen.ranks == 4);
  CHECK(chosen.shards == 1);
  CHECK(chosen.seeds >= 5);
  CHECK_FALSE(chosen.held_out);
  CHECK(chosen.averaging_interval() == 50);
  CHECK(chosen.difference_interval() == 2);
  CHECK(chosen.warmup_steps() == chosen.steps / 10);
  CHECK(chosen.one_bit_warmup_steps() == chosen.steps / 5);
  CHECK_FALSE(chosen.one_bit_threshold.has_value());
  CHECK(chosen.variance_freeze_step() == chosen.steps / 5);
  CHECK(chosen.local_interval_scaler() == chosen.steps / 5);
  CHECK(parse({"--steps", "3"}).one_bit_warmup_steps() == 1);
  CHECK_FALSE(chosen.learning_rate.has_value());
  CHECK(chosen.precision == "float32");
  CHECK(chosen.rounding_mode() == "masters");
  CHECK(chosen.scale_of_loss() == 1.0F);
}

TEST_CASE("command line: sets every option") {
  CHECK(parse({"--optimizer", "gamma,alpha"}).optimizers == std::vector<std::string>{"gamma", "alpha"});
  CHECK(parse({"--optimizer", "gamma", "--optimizer", "beta"}).optimizers == std::vector<std::string>{"gamma", "beta"});
  CHECK(parse({"--compressor", "rice,none"}).compressors == std::vector<std::string>{"rice", "none"});
  CHECK(parse({"--held-out"}).held_out);
  const train::settings chosen =
      parse({"--ranks", "7",        "--batch=99", "--steps",        "50", "--learning-rate", "1e-3", "--schedule",
             "step",    "--warmup", "0",          "--weight-decay", "0",  "--seed",          "12",   "--seeds",
             "1",       "--k",      "0.25",       "--block",        "16", "--beta3",         "0.5",  "--local-steps",
             "9",       "--data",   "d.csv",      "--json",         "j",  "--csv",           "c",    "--plot",
             "p"});
  CHECK(chosen.ranks == 7);
  CHECK(chosen.batch == 99);
  CHECK(chosen.steps == 50);
  CHECK(chosen.learning_rate == 1e-3);
  CHECK(chosen.schedule == "step");
  CHECK(chosen.warmup_steps() == 0);
  CHECK(chosen.weight_decay == 0.0);
  CHECK(chosen.seed == 12);
  CHECK(chosen.seeds == 1);
  CHECK(chosen.k == 0.25);
  CHECK(chosen.block == 16);
  CHECK(chosen.beta3 == 0.5);
  CHECK(chosen.local_steps == 9);
  CHECK(chosen.averaging_interval() == 9);
  CHECK(chosen.difference_interval() == 9);
  CHECK(chosen.data == "d.csv");
  CHECK(chosen.json == "j");
  CHECK(chosen.csv == "c");
  CHECK(chosen.plot == "p");
  CHECK(chosen.checkpoint.empty());
  CHECK_FALSE(chosen.resume);
  CHECK(chosen.checkpoint_interval() == 5);
  const train::settings kept = parse({"--checkpoint", "d", "--checkpoint-every", "3", "--resume"});
  CHECK(kept.checkpoint == "d");
  CHECK(kept.checkpoint_interval() == 3);
  CHECK(kept.resume);
}

TEST_CASE("command line: shards multiply ranks, and divide processes") {
  const train::settings chosen = parse({"--ranks", "3", "--shards", "2"});
  CHECK(chosen.ranks == 3);
  CHECK(chosen.shards == 2);
  CHECK(chosen.all_ranks() == 6);
  const auto of_processes = [](int processes, std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "slamb_train");
    return train::parse_command_line(static_cast<int>(arguments.size()), arguments.data(), {optimizers, compressors},
                                     processes)
        .value();
  };
  CHECK(of_processes(6, {}).ranks == 6);
  CHECK(of_processes(6, {"--shards", "2"}).ranks == 3);
  CHECK(of_processes(6, {"--shards", "6"}).ranks == 1);
  CHECK(of_processes(6, {"--shards", "3", "--ranks", "2"}).ranks == 2);
  const auto refused = [&](int processes, const std::vector<const char*>& arguments) {
    try {
      of_processes(processes, arguments);
    } catch (const train::usage_error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(refused(6, {"--shards", "4"}) == "--shards: 4 does not divide the 6 processes that were started");
  CHECK(refused(6, {"--shards", "3", "--ranks", "3"}) ==
        "--ranks: 3 of 3 shards, but 6 processes were started, and each is a rank");
  CHECK(refused(6, {"--ranks", "3"}) == "--ranks: 3, but 6 processes were started, and each is a rank");
}

TEST_CASE("command line: sets the types of parameters and gradients") {
  const train::settings bf16 = parse({"--precision", "bf16"});
  CHECK(bf16.precision == "bf16");
  CHECK(bf16.rounding_mode() == "masters");
  CHECK(bf16.scale_of_loss() == 1.0F);
  const train::settings fp16 = parse({"--precision", "fp16", "--rounding", "stochastic"});
  CHECK(fp16.rounding_mode() == "stochastic");
  CHECK(fp16.scale_of_loss() == 1024.0F);
  CHECK(parse({"--precision", "fp16", "--loss-scale", "1"}).scale_of_loss() == 1.0F);
  CHECK(parse({"--precision", "float32"}).scale_of_loss() == 1.0F);
}

TEST_CASE("command line: sets the schedules of the 1-bit optimizers") {
  const train::settings chosen =
      parse({"--one-bit-epsilon", "1e-6", "--one-bit-warmup", "70", "--one-bit-threshold", "0.9", "--freeze-step", "0",
             "--variance-update-scaler", "8", "--local-step-scaler", "25", "--local-step-clipper", "4"});
  CHECK(chosen.one_bit_epsilon == std::optional<double>(1e-6));
  CHECK(chosen.one_bit_warmup_steps() == 70);
  CHECK(chosen.one_bit_threshold == 0.9);
  CHECK(chosen.variance_freeze_step() == 0);
  CHECK(chosen.variance_update_scaler == 8);
  CHECK(chosen.local_interval_scaler() == 25);
  CHECK(chosen.local_step_clipper == 4);
}

TEST_CASE("command line: an error names the option, the value and the range") {
  check_refused({}, "nothing was thrown");
  check_refused({"--ranks", "0"}, "--ranks: '0' is not an integer in [1, 64]");
  check_refused({"--ranks", "-1"}, "--ranks: '-1' is not an integer in [1, 64]");
  check_refused({"--ranks", "four"}, "--ranks: 'four' is not an integer in [1, 64]");
  check_refused({"--ranks", "4.0"}, "--ranks: '4.0' is not");
  check_refused({"--ranks", ""}, "--ranks");
  check_refused({"--shards", "0"}, "--shards: '0' is not an integer in [1, 64]");
  check_refused({"--steps", "0"}, "--steps: '0' is not an integer in [1, 1000000]");
  check_refused({"--steps", "18446744073709551616"}, "--steps: '18446744073709551616' is not an integer in");
  check_refused({"--learning-rate", "0"}, "--learning-rate: '0' is not a number in (0, 1000000]");
  check_refused({"--learning-rate", "nan"}, "--learning-rate: 'nan' is not a number");
  check_refused({"--learning-rate", "inf"}, "--learning-rate: 'inf' is not a number");
  check_refused({"--weight-decay", "-0.1"}, "--weight-decay: '-0.1' is not a number in [0, 1000000]");
  check_refused({"--k", "0"}, "--k: '0' is not a number in [0.0001, 1]");
  check_refused({"--k", "1.01"}, "--k: '1.01' is not a number in [0.0001, 1]");
  check_refused({"--block", "0"}, "--block: '0' is not an integer in [1, 1048576]");
  check_refused({"--beta3", "1.5"}, "--beta3: '1.5' is not a number in [0, 1]");
  check_refused({"--local-steps", "0"}, "--local-steps: '0' is not an integer");
  check_refused({"--schedule", "linear"}, "--schedule: 'linear' is not one of constant, polynomial, cosine, step");
  check_refused({"--precision", "fp8"}, "--precision: 'fp8' is not one of float32, bf16, fp16");
  check_refused({"--precision", "bf16", "--rounding", "nearest"},
                "--rounding: 'nearest' is not one of masters, stochastic");
  check_refused({"--precision", "fp16", "--loss-scale", "0.5"}, "--loss-scale: '0.5' is not a number in [1, 16777216]");
  check_refused({"--optimizer", "delta"}, "--optimizer: 'delta' is not one of alpha, beta, gamma");
  check_refused({"--compressor", "zip"}, "--compressor: 'zip' is not one of none, rice");
  check_refused({"--one-bit-warmup", "0"}, "--one-bit-warmup: '0' is not an integer in [1, 1000000]");
  check_refused({"--one-bit-threshold", "1.1"}, "--one-bit-threshold: '1.1' is not a number in (0, 1]");
  check_refused({"--one-bit-epsilon", "0"}, "--one-bit-epsilon: '0' is not a number in [1e-30, 1]");
  check_refused({"--local-step-clipper", "0"}, "--local-step-clipper: '0' is not an integer in [1, 1000000]");
  check_refused({"--json", ""}, "--json");
  check_refused({"--checkpoint", ""}, "--checkpoint");
  check_refused({"--checkpoint", "d", "--checkpoint-every", "0"},
                "--checkpoint-every: '0' is not an integer in [1, 1000000]");
  check_refused({"--speed", "9"}, "--speed");
  check_refused({"more"}, "more");
}

TEST_CASE("command line: options that exclude each other are rejected") {
  check_refused({"--optimizer", "alpha,beta,alpha"}, "--optimizer: 'alpha' is listed twice");
  check_refused({"--compressor", "rice,rice"}, "--compressor: 'rice' is listed twice");
  for (const char* option : {"--rounding=masters", "--loss-scale=2"})
    check_refused({option},
                  ": --precision float32 stores no numbers of 16 bits; say --precision bf16 or --precision fp16");
  check_refused({"--steps", "10", "--warmup", "10"}, "--warmup: 10 is not in [0, 9]");
  check_refused({"--ranks", "8", "--batch", "7"}, "--batch: 7 is not >= --ranks, which is 8");
  check_refused({"--ranks", "2", "--shards", "4", "--batch", "7"},
                "--batch: 7 is not >= --ranks times --shards, which is 8");
  check_refused({"--ranks", "33", "--shards", "2"},
                "--shards: 2 shards on 33 ranks each (--ranks) are 66 ranks, more than 64");
  check_refused({"--ranks", "1", "--plot", "p.svg"}, "--plot: a single rank sends nothing");
  check_refused({"--resume"}, "--resume: no folder is named; say --checkpoint DIR");
  check_refused({"--checkpoint-every", "9"}, "--checkpoint-every: no folder is named; say --checkpoint DIR");
  check_refused({"--checkpoint", "d", "--resume", "--checkpoint-every", "9"}, "nothing was thrown");
  check_refused({"--steps", "10", "--warmup", "9"}, "nothing was thrown");
}

TEST_CASE("command line: a batch or number of ranks that is too large for the data is rejected") {
  train::split_digits data;
  const std::vector<float> image(train::pixels_per_image);
  for (int i = 0; i < 6; ++i) data.training.append(image, i);
  CHECK_NOTHROW(train::check_against_data(parse({"--ranks", "6", "--batch", "6"}), data));
  CHECK_THROWS_AS(train::check_against_data(parse({"--ranks", "6", "--batch", "7"}), data), train::usage_error);
  CHECK_THROWS_AS(train::check_against_data(parse({"--ranks", "7", "--batch", "7"}), data), train::data_error);
  CHECK_NOTHROW(train::check_against_data(parse({"--ranks", "2", "--shards", "3", "--batch", "6"}), data));
  CHECK_THROWS_AS(train::check_against_data(parse({"--ranks", "2", "--shards", "4", "--batch", "8"}), data),
                  train::data_error);
}

TEST_CASE("make_schedule: warms up, then ends near zero unless it is constant") {
  for (const std::string_view name : train::schedule_names) {
    train::settings chosen;
    chosen.schedule = name;
    chosen.steps = 40;
    chosen.warmup = 9;
    const train::schedule_function rate = train::make_schedule(chosen, 2.0);
    CHECK(rate(1) == doctest::Approx(0.2));
    CHECK(rate(9) == doctest::Approx(1.8));
    CHECK(rate(10) == 2.0);
    CHECK(rate(40) <= (name == "constant" ? 2.0 : 0.1));
    CHECK(rate(40) > 0.0);
  }
}
