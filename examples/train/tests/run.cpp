// Tests of short runs of slamb_train with every optimizer of its table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../command_line.hpp"
#include "../optimizers.hpp"
#include "../report.hpp"
#include "../training.hpp"

namespace {

const train::split_digits& data() {
  static const train::split_digits parts = train::split(train::read_digits(SLAMB_TRAIN_DATA));
  return parts;
}

train::settings short_run(int ranks) {
  train::settings chosen;
  chosen.ranks = ranks;
  chosen.batch = 50;
  chosen.steps = 150;
  chosen.seeds = 1;
  return chosen;
}

train::outcome run(const train::settings& chosen, const train::optimizer_entry& entry, std::uint64_t seed = 1) {
  const train::task work{chosen, data(), seed, entry.learning_rate, [](std::uint64_t) {}};
  train::outcome result = train::train(work, entry.maker(chosen, seed));
  result.optimizer = entry.name;
  return result;
}

std::vector<train::optimizer_entry> entries_of(const std::vector<std::string>& optimizers,
                                               const std::vector<std::string>& compressors = {}) {
  train::settings chosen;
  chosen.optimizers = optimizers;
  chosen.compressors = compressors;
  return train::choose_optimizers(chosen);
}

const train::optimizer_entry& find_entry(const std::string& name) {
  static const std::vector<train::optimizer_entry> all = entries_of({});
  const auto found = std::ranges::find(all, name, &train::optimizer_entry::name);
  REQUIRE(found != all.end());
  return *found;
}

}  // namespace

TEST_CASE("slamb_train: every optimizer learns, on one rank and on several with shares of unequal size") {
  for (const train::optimizer_entry& entry : entries_of({})) {
    for (const int ranks : {1, 3}) {
      CAPTURE(entry.name);
      CAPTURE(ranks);
      const train::outcome result = run(short_run(ranks), entry);
      CHECK(result.statistics.step == 150);
      CHECK(result.statistics.skipped_steps == 0);
      CHECK(result.final_loss < 0.5 * result.curve.front().loss);
      CHECK(result.test_accuracy > 0.8);
      REQUIRE(result.curve.size() == 150);
      CHECK(result.curve.front().loss == doctest::Approx(std::log(10.0)).epsilon(0.2));
      CHECK(std::ranges::is_sorted(result.curve, {}, &train::curve_point::sent_bytes));
      CHECK((result.curve.back().sent_bytes > 0) == (ranks > 1));
      CHECK(result.curve.back().sent_bytes == result.statistics.traffic.total().sent_bytes);
      CHECK(result.curve.back().rounds == result.statistics.traffic.total().rounds);
    }
  }
}

TEST_CASE("slamb_train: every optimizer learns with every compressor that it takes") {
  train::settings chosen = short_run(2);
  chosen.steps = 100;
  std::size_t combinations = 0;
  for (const std::string_view compressor : train::compressor_names()) {
    for (const train::optimizer_entry& entry : entries_of({}, {std::string(compressor)})) {
      CAPTURE(entry.name);
      const train::outcome result = run(chosen, entry);
      ++combinations;
      CHECK(result.statistics.skipped_steps == 0);
      CHECK(result.final_loss < 0.7 * result.curve.front().loss);
    }
  }
  CHECK(combinations == 2 * 13 + 3 * 7 + 5);
}

TEST_CASE("slamb_train: the same settings give the same bits") {
  for (const train::optimizer_entry& entry : entries_of({})) {
    CAPTURE(entry.name);
    const train::outcome one = run(short_run(4), entry);
    const train::outcome again = run(short_run(4), entry);
    CHECK(one.parameter_hash == again.parameter_hash);
    CHECK(one.final_loss == again.final_loss);
  }
}

TEST_CASE("slamb_train: every optimizer learns with parameters and gradients of 16 bits, equal on all ranks") {
  const std::vector<train::optimizer_entry> entries = entries_of({});
  using pair = std::pair<std::string, std::string>;
  for (const auto& [precision, rounding] :
       {pair("bf16", "masters"), pair("bf16", "stochastic"), pair("fp16", "masters")})
    for (const train::optimizer_entry& entry : entries) {
      CAPTURE(entry.name);
      CAPTURE(precision);
      CAPTURE(rounding);
      train::settings chosen = short_run(3);
      chosen.precision = precision;
      chosen.rounding = rounding;
      const train::outcome result = run(chosen, entry);  // throws if ranks end with different parameters
      CHECK(result.statistics.skipped_steps == 0);
      CHECK(result.statistics.local_skips == 0);
      CHECK(result.curve.front().loss == doctest::Approx(std::log(10.0)).epsilon(0.2));
      CHECK(result.final_loss < 0.5 * result.curve.front().loss);
      CHECK(result.test_accuracy > 0.8);
    }
}

TEST_CASE("slamb_train: an optimizer learns with every compressor on parameters of 16 bits") {
  train::settings chosen = short_run(2);
  chosen.steps = 100;
  chosen.precision = "bf16";
  for (const std::string_view compressor : train::compressor_names()) {
    CAPTURE(compressor);
    const train::outcome result = run(chosen, entries_of({}, {std::string(compressor)}).front());
    CHECK(result.statistics.skipped_steps == 0);
    CHECK(result.final_loss < 0.7 * result.curve.front().loss);
  }
}

TEST_CASE("slamb_train: bf16 reaches the accuracy of float32, with masters and by stochastic rounding") {
  for (const std::string name : {"adamw", "lamb", "slamb", "one_bit_lamb"}) {
    const train::optimizer_entry entry = find_entry(name);
    const auto accuracies = [&](const std::string& precision, const std::optional<std::string>& rounding) {
      train::settings chosen = short_run(2);
      chosen.precision = precision;
      chosen.rounding = rounding;
      std::vector<double> of_seeds;
      for (const std::uint64_t seed : {1U, 2U, 3U}) of_seeds.push_back(run(chosen, entry, seed).test_accuracy);
      return of_seeds;
    };
    const auto mean = [](const std::vector<double>& x) { return std::reduce(x.begin(), x.end()) / 3.0; };
    const std::vector<double> floats = accuracies("float32", std::nullopt);
    const auto [least, most] = std::ranges::minmax(floats);
    for (const std::string rounding : {"masters", "stochastic"}) {
      const double reached = mean(accuracies("bf16", rounding));
      MESSAGE(name, ": float32 ", least, " to ", most, ", bf16 ", rounding, " ", reached);
      CHECK(reached >= least - 0.003);  // an image in 360
    }
  }
}

TEST_CASE(
    "slamb_train: the optimizer undoes the loss scale, and skips steps in which it has made a gradient infinite") {
  train::settings chosen = short_run(2);
  chosen.steps = 30;
  chosen.precision = "bf16";
  const train::outcome plain = run(chosen, find_entry("lamb"));
  chosen.loss_scale = 4096.0;  // a power of two changes no bits of a bfloat16
  const train::outcome scaled = run(chosen, find_entry("lamb"));
  CHECK(scaled.parameter_hash == plain.parameter_hash);
  CHECK(scaled.curve.back().loss == plain.curve.back().loss);

  chosen.precision = "fp16";
  chosen.loss_scale = 0x1p24;
  const train::outcome skipped = run(chosen, find_entry("lamb"));
  CHECK(skipped.statistics.skipped_steps == 30);
  CHECK(skipped.final_loss == skipped.untrained_loss);
}

TEST_CASE("slamb_train: every optimizer learns on shards, with replicas and without") {
  for (const train::optimizer_entry& entry : entries_of({}))
    for (const int ranks : {1, 2}) {
      CAPTURE(entry.name);
      CAPTURE(ranks);
      train::settings chosen = short_run(ranks);
      chosen.shards = 3;
      const train::outcome result = run(chosen, entry);  // throws if ranks end with different parameters
      CHECK(result.statistics.step == 150);
      CHECK(result.statistics.skipped_steps == 0);
      CHECK(result.curve.front().loss == doctest::Approx(std::log(10.0)).epsilon(0.2));
      CHECK(result.final_loss < 0.5 * result.curve.front().loss);
      CHECK(result.test_accuracy > 0.8);
      CHECK((result.curve.back().sent_bytes > 0) == (ranks > 1));
      CHECK(result.statistics.in_shards.rounds >= 150);
      CHECK(result.of_model.rounds == 2 * 150);
      // The sums over tensors and the skipped steps are few bytes, beside what a model sends.
      CHECK(result.statistics.in_shards.sent_bytes < result.of_model.sent_bytes / 100);
    }
}

TEST_CASE(
    "slamb_train: a replica of S shards has the loss of S whole ranks, and their bits where S is a power of two") {
  // The sum over the shard group is divided by S, which then rounds nothing.
  for (const std::string name : {"adamw", "lamb"})
    for (const int count : {2, 3, 4}) {
      CAPTURE(name);
      CAPTURE(count);
      train::settings chosen = short_run(count);
      const train::outcome whole = run(chosen, find_entry(name));
      chosen.ranks = 1;
      chosen.shards = count;
      const train::outcome shards = run(chosen, find_entry(name));
      CHECK(whole.statistics.in_shards.rounds == 0);
      CHECK(whole.of_model.rounds == 0);
      for (std::size_t i = 0; i < whole.curve.size(); ++i)
        CHECK(shards.curve[i].loss == doctest::Approx(whole.curve[i].loss).epsilon(count == 3 ? 1e-2 : 1e-9));
      CHECK((shards.parameter_hash == whole.parameter_hash) == (count != 3));
    }
}

TEST_CASE("slamb_train: N replicas of S shards have the loss of N times S whole ranks, to rounding") {
  for (const std::string name : {"adamw", "lamb"})
    for (const auto& [ranks, shards] : {std::pair(2, 2), std::pair(3, 2), std::pair(2, 3)}) {
      CAPTURE(name);
      CAPTURE(ranks);
      CAPTURE(shards);
      train::settings chosen = short_run(ranks * shards);
      chosen.steps = 60;
      const train::outcome whole = run(chosen, find_entry(name));
      chosen.ranks = ranks;
      chosen.shards = shards;
      const train::outcome parts = run(chosen, find_entry(name));
      double largest = 0.0;
      for (std::size_t i = 0; i < whole.curve.size(); ++i)
        largest = std::max(largest, std::abs(parts.curve[i].loss / whole.curve[i].loss - 1.0));
      MESSAGE(name, ", ", ranks, " replicas of ", shards, " shards: losses differ by at most ", largest);
      CHECK(largest < 1e-4);
      CHECK(parts.curve.front().loss == whole.curve.front().loss);
      CHECK(parts.final_loss == doctest::Approx(whole.final_loss).epsilon(1e-2));
    }
}

TEST_CASE("slamb_train: shards of parameters of 16 bits learn, and a step that one rank skips is skipped by all") {
  for (const std::string name : {"adamw", "lamb", "slamb", "one_bit_lamb"})
    for (const std::string rounding : {"masters", "stochastic"}) {
      CAPTURE(name);
      CAPTURE(rounding);
      train::settings chosen = short_run(2);
      chosen.shards = 2;
      chosen.precision = "bf16";
      chosen.rounding = rounding;
      const train::outcome result = run(chosen, find_entry(name));
      CHECK(result.statistics.skipped_steps == 0);
      CHECK(result.test_accuracy > 0.8);
    }
  train::settings chosen = short_run(2);
  chosen.steps = 30;
  chosen.shards = 2;
  chosen.precision = "fp16";
  chosen.loss_scale = 0x1p24;
  const train::outcome skipped = run(chosen, find_entry("lamb"));
  CHECK(skipped.statistics.skipped_steps == 30);
  CHECK(skipped.final_loss == skipped.untrained_loss);
}

TEST_CASE("slamb_train: with shards, the output tells what is sent between replicas from what is sent among shards") {
  train::settings chosen = short_run(2);
  chosen.steps = 10;
  chosen.shards = 2;
  const std::vector<train::optimizer_entry> entries = entries_of({"lamb", "slamb"});
  const std::vector<train::outcome> outcomes{run(chosen, entries[0]), run(chosen, entries[1])};
  const auto& its = outcomes[0].statistics;
  CHECK(static_cast<double>(its.traffic.total().sent_bytes) == train::bytes_of_lamb(10, {.ranks = 2, .shards = 2}));
  // Six tensors with two sums each, and 16 bytes of the skip with two words for the gradients of tensors of which a rank has nothing: each
  // rank sends its own to the other one.
  CHECK(its.in_shards.rounds == 20);
  CHECK(its.in_shards.sent_bytes == 10 * (6 * 2 * 8 + 16 + 16));
  const std::uint64_t half = train::parameters_of_network() / 2 * sizeof(float);
  CHECK(outcomes[0].of_model.sent_bytes == 10 * (half + 2 * half));

  std::ostringstream text, whole, json;
  train::print_settings(text, chosen, entries, data());
  train::print_table(text, chosen, entries, outcomes);
  CHECK(text.str().find("; 4 ranks (2 that hold each of 2 shards), batch 50") != std::string::npos);
  CHECK(text.str().find("MB in shards") != std::string::npos);
  CHECK(text.str().find("The model sends them 3.05 MB in each run") != std::string::npos);
  train::write_json(json, chosen, entries, data(), outcomes);
  const nlohmann::json read = nlohmann::json::parse(json.str());
  CHECK(read["settings"]["shards"] == 2);
  CHECK(read["runs"][0]["in_shards"]["sent_bytes"] == its.in_shards.sent_bytes);
  CHECK(read["runs"][0]["model_in_shards"]["rounds"] == 20);

  chosen.shards = 1;
  train::print_settings(whole, chosen, entries, data());
  train::print_table(whole, chosen, entries, outcomes);
  CHECK(whole.str().find("shard") == std::string::npos);
}

TEST_CASE("slamb_train: auto chooses on shards, the same on all ranks") {
  train::settings chosen = short_run(2);
  chosen.steps = 20;
  chosen.shards = 2;
  const train::optimizer_entry entry = entries_of({"auto"}).front();
  const train::outcome result = run(chosen, entry);
  CHECK(result.statistics.chosen.trial_steps > 0);
  train::optimizer_entry plain = find_entry(result.statistics.chosen.is_compressed ? "slamb" : "lamb");
  plain.learning_rate = entry.learning_rate;
  CHECK(run(chosen, plain).parameter_hash == result.parameter_hash);
}

TEST_CASE("slamb_train: all other optimizers send less than LAMB, the baseline") {
  train::settings chosen = short_run(4);
  chosen.steps = 2 * chosen.averaging_interval();
  const double whole = train::bytes_of_lamb(chosen.steps, {.ranks = 4});
  const auto part = [&](const char* name) {
    return static_cast<double>(run(chosen, find_entry(name)).curve.back().sent_bytes) / whole;
  };
  CHECK(part("lamb") == 1.0);
  CHECK(part("adamw") == 1.0);
  CHECK(part("slamb") < 0.25);
  CHECK(part("slamb+int8") < 0.1);
  CHECK(part("one_bit_adam") < 0.25);
  CHECK(part("one_bit_lamb") < 0.25);
  CHECK(part("zero_one_adam") < 0.25);
}

TEST_CASE("slamb_train: SLAMB by differences exchanges parameters in every second step, or as it is told") {
  train::settings chosen = short_run(2);
  chosen.steps = 12;
  const auto rounds = [&] { return run(chosen, entries_of({"slamb_by_differences"}).front()).curve.back().rounds; };
  const std::uint64_t every_second = rounds();
  chosen.local_steps = 4;
  CHECK(every_second - rounds() == 2 * (6 - 3));  // two collectives of each exchange
  chosen.local_steps = 2;
  CHECK(rounds() == every_second);
}

TEST_CASE("slamb_train: each step is counted in its phase") {
  train::settings chosen = short_run(2);
  chosen.steps = 20;
  chosen.one_bit_warmup = 8;
  const train::outcome result = run(chosen, find_entry("one_bit_lamb"));
  REQUIRE(result.statistics.phases.size() == 2);
  CHECK(result.statistics.warm_up.ended_after == 8);
  for (std::size_t i = 0; i < result.curve.size(); ++i) CHECK(result.curve[i].phase == (i < 8 ? 0U : 1U));
  CHECK(result.statistics.phases[0].traffic.total().sent_bytes == result.curve[7].sent_bytes);
  CHECK(result.curve[7].rounds == 8);
  CHECK(result.curve[19].rounds == 8 + 2 * 12);
}

TEST_CASE(
    "slamb_train: a threshold ends the warm-up when the variance is stable, not before the learning rate's warm-up "
    "ends") {
  train::settings chosen = short_run(2);
  chosen.one_bit_warmup = 100;
  chosen.one_bit_threshold = 0.01;  // any variance is stable enough at the first comparison
  const slamb::statistics::warm_up_type soon = run(chosen, find_entry("one_bit_adam")).statistics.warm_up;
  CHECK(soon.ended_after >= chosen.warmup_steps());
  CHECK(soon.ended_after < 30);
  CHECK(soon.variance_ratio > 0.01);
  chosen.one_bit_threshold.reset();
  CHECK(run(chosen, find_entry("one_bit_adam")).statistics.warm_up.ended_after == 100);
}

TEST_CASE("slamb_train: 0/1 Adam takes its schedules from the settings") {
  train::settings chosen = short_run(2);
  chosen.steps = 40;
  chosen.freeze_step = 11;  // steps count from 2 here, so the first phase ends after step 11
  chosen.variance_update_scaler = 1000;
  chosen.local_step_scaler = 1;
  chosen.local_step_clipper = 1000;
  const train::outcome result = run(chosen, find_entry("zero_one_adam"));
  REQUIRE(result.statistics.phases.size() == 2);
  CHECK(result.statistics.phases[1].first_step == 12);
  CHECK(result.statistics.phases[0].traffic[slamb::collective::all_reduce].rounds == 11);
  CHECK(result.curve[39].rounds < 11 + 2 * 4 + 4);  // the interval doubles at each step
}

TEST_CASE("slamb_train: compares all or only the named optimizers, with their own compressors") {
  std::vector<std::string> names;
  for (const train::optimizer_entry& entry : entries_of({})) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"lamb", "adamw", "slamb", "slamb+int8", "one_bit_adam", "one_bit_lamb",
                                          "zero_one_adam"});
  names.insert(names.end(), {"slamb_by_differences", "auto"});  // these are trained only if they are named
  CHECK(std::ranges::equal(names, train::optimizer_names()));
  const auto named = entries_of({"slamb+int8", "lamb"});
  REQUIRE(named.size() == 2);
  CHECK(named[0].name == "slamb+int8");
  CHECK(named[1].name == "lamb");
}

TEST_CASE("slamb_train: a compressor is combined with every optimizer that takes it, under its own name") {
  const auto names = [](const std::vector<std::string>& optimizers, const std::vector<std::string>& compressors) {
    std::string all;
    for (const train::optimizer_entry& entry : entries_of(optimizers, compressors)) all += entry.name + " ";
    return all;
  };
  CHECK(names({}, {"int8"}) == "lamb+int8 adamw+int8 one_bit_adam+int8 one_bit_lamb+int8 zero_one_adam+int8 ");
  CHECK(names({}, {"none"}) == "lamb adamw ");
  CHECK(names({"slamb", "lamb"}, {"random_k+int8", "top_k"}) ==
        "slamb+int8 slamb+top_k lamb+random_k+int8 lamb+top_k ");
  CHECK(names({"one_bit_adam"}, {"sign"}) == "one_bit_adam ");
  CHECK(entries_of({"slamb"}, {"top_k"}).front().learning_rate == find_entry("slamb").learning_rate);
}

TEST_CASE("slamb_train: an impossible combination is rejected, with a list of the possible ones") {
  const auto complaint = [](const std::string& optimizer, const std::string& compressor) {
    try {
      entries_of({optimizer}, {compressor});
    } catch (const train::usage_error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(complaint("slamb", "sign") ==
        "--compressor: 'sign' cannot be used with slamb, which takes one of random_k, top_k, random_k+int8, "
        "random_k+int4, random_k+sign");
  CHECK(complaint("zero_one_adam", "none") ==
        "--compressor: 'none' cannot be used with zero_one_adam, which takes one of sign, sign-per-tensor, int8, int4, "
        "natural, bf16, fp16");
  CHECK(complaint("slamb+int8", "random_k") ==
        "--compressor: slamb+int8 always uses random_k+int8; use --optimizer slamb for another");
  CHECK(complaint("slamb", "top_k") == "nothing was thrown");
  CHECK(complaint("auto", "top_k") == "nothing was thrown");
  CHECK(complaint("auto", "int8").find("cannot be used with auto, which takes one of random_k, top_k") !=
        std::string::npos);
}

TEST_CASE("slamb_train: auto has the bits of lamb or slamb, and reports which") {
  train::settings chosen = short_run(2);
  chosen.steps = 20;
  const train::optimizer_entry entry = entries_of({"auto"}).front();
  CHECK(entry.name == "auto");
  const train::outcome result = run(chosen, entry);
  const slamb::statistics::choice_type& made = result.statistics.chosen;
  CHECK(made.trial_steps > 0);
  CHECK(made.trial_elements == train::parameters_of_network());
  train::optimizer_entry plain = find_entry(made.is_compressed ? "slamb" : "lamb");
  plain.learning_rate = entry.learning_rate;
  CHECK(run(chosen, plain).parameter_hash == result.parameter_hash);

  std::ostringstream table;
  train::print_table(table, chosen, {entry}, {result});
  CHECK(table.str().find(std::string("\nauto, seed 1: the ") + (made.is_compressed ? "compressed" : "dense") +
                         " optimizer was kept; a step of the trial took ") != std::string::npos);
  std::ostringstream json;
  train::write_json(json, chosen, {entry}, data(), {result});
  const auto choice = nlohmann::json::parse(json.str())["runs"][0]["choice"];
  CHECK(choice["kept"] == (made.is_compressed ? "compressed" : "dense"));
  CHECK(choice["dense_seconds"] == made.dense_seconds);
  CHECK(choice["compressed_seconds"] == made.compressed_seconds);

  const train::outcome alone = run(short_run(1), entry);  // nothing is sent, so there is nothing to choose
  CHECK(alone.statistics.chosen.trial_steps == 0);
  CHECK(alone.statistics.phase == "dense");
}

TEST_CASE("slamb_train: names the optimizer whose loss diverged, and no other") {
  train::settings chosen = short_run(4);
  chosen.steps = 20;
  const auto entries = entries_of({"lamb", "adamw"});
  std::vector<train::outcome> outcomes{run(chosen, entries[0]), run(chosen, entries[1])};
  CHECK(outcomes[0].untrained_loss == outcomes[1].untrained_loss);
  CHECK(outcomes[0].untrained_loss == doctest::Approx(std::log(10.0)).epsilon(0.2));
  const auto table = [&] {
    std::ostringstream text;
    train::print_table(text, chosen, entries, outcomes);
    return text.str();
  };
  CHECK(table().find("diverged") == std::string::npos);
  outcomes[1].final_loss = 1e31;
  CHECK(table().find("\nadamw diverged: its final loss, 1e+31, is not below the untrained network's 2.") !=
        std::string::npos);
  CHECK(table().find("lamb diverged") == std::string::npos);
}

TEST_CASE("slamb_train: reports mean and deviation, JSON that can be read back, and a row of CSV per step") {
  train::settings chosen = short_run(2);
  const auto entries = entries_of({"lamb"});
  std::vector<train::outcome> outcomes(2);
  for (std::size_t i = 0; i < 2; ++i) {
    outcomes[i].optimizer = "lamb";
    outcomes[i].seed = i + 1;
    outcomes[i].test_accuracy = 0.96 + 0.02 * static_cast<double>(i);
    outcomes[i].final_loss = std::nan("");
    outcomes[i].curve = {{2.5, 0, 0, 0}, {0.125, 1000, 3, 1}};
    outcomes[i].statistics.phases = {{"warm-up", 1, {}}, {"compressed", 2, {}}};
    outcomes[i].statistics.traffic[slamb::collective::all_gather] = {3, 250, 1000, 456384};
    outcomes[i].statistics.phases[1].traffic = outcomes[i].statistics.traffic;
  }
  outcomes[1].statistics.skipped_steps = 3;
  outcomes[1].statistics.local_skips = 4;
  outcomes[1].statistics.warm_up = {1, 0.97};
  chosen.steps = 2;
  chosen.seeds = 2;
  std::ostringstream table;
  train::print_table(table, chosen, entries, outcomes);
  CHECK(table.str().find("97.00 \u00B1 1.41 %") != std::string::npos);
  CHECK(table.str().find("lamb diverged: its final loss, nan, is not below") != std::string::npos);
  CHECK(table.str().find("lamb, seed 2: all ranks skipped 3 steps") != std::string::npos);
  CHECK(table.str().find("lamb, seed 2: rank 0 left out 4 gradients") != std::string::npos);
  CHECK(table.str().find(" 0.46    112.2 %       3 ") != std::string::npos);  // 2 · 4 · 50826 bytes are 100 %
  std::ostringstream csv;
  train::write_csv(csv, outcomes);
  CHECK(csv.str() ==
        "optimizer,seed,step,loss,sent_bytes,rounds,phase\n"
        "lamb,1,1,2.5,0,0,warm-up\nlamb,1,2,0.125,1000,3,compressed\n"
        "lamb,2,1,2.5,0,0,warm-up\nlamb,2,2,0.125,1000,3,compressed\n");
  std::ostringstream json;
  train::write_json(json, chosen, entries, data(), outcomes);
  const auto document = nlohmann::json::parse(json.str());
  CHECK(document["settings"]["ranks"] == 2);
  CHECK(document["settings"]["precision"] == "float32");
  CHECK(document["settings"]["rounding"].is_null());
  CHECK(document["settings"]["loss_scale"] == 1.0);
  CHECK(document["runs"].size() == 2);
  CHECK(document["runs"][1]["test_accuracy"].get<double>() == outcomes[1].test_accuracy);
  CHECK(document["runs"][0]["final_loss"].is_null());
  CHECK(document["runs"][0]["warm_up"].is_null());
  CHECK(document["runs"][1]["warm_up"]["ended_after"] == 1);
  CHECK(document["runs"][1]["warm_up"]["variance_ratio"] == 0.97);
  const auto& phases = document["runs"][0]["phases"];
  REQUIRE(phases.size() == 2);
  CHECK(phases[0]["name"] == "warm-up");
  CHECK(phases[0]["collectives"].empty());
  CHECK(phases[1]["first_step"] == 2);
  CHECK(phases[1]["sent_bytes"] == 456384);
  CHECK(phases[1]["collectives"]["all_gather"]["rounds"] == 3);
}
