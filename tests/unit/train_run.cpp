// Runs of slamb_train, short ones, with every optimizer of its table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "../../examples/train/optimizers.hpp"
#include "../../examples/train/report.hpp"

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

train::outcome run(const train::settings& chosen, const train::optimizer_entry& entry) {
  train::outcome result = entry.train({chosen, data(), 1, entry.learning_rate, [](std::uint64_t) {}});
  result.optimizer = entry.name;
  return result;
}

}  // namespace

TEST_CASE("slamb_train: every optimizer learns, on one rank and on several with shares of unequal size") {
  for (const train::optimizer_entry& entry : train::optimizers) {
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
    }
  }
}

TEST_CASE("slamb_train: the same settings give the same bits") {
  for (const train::optimizer_entry& entry : train::optimizers) {
    CAPTURE(entry.name);
    const train::outcome one = run(short_run(4), entry);
    const train::outcome again = run(short_run(4), entry);
    CHECK(one.parameter_hash == again.parameter_hash);
    CHECK(one.final_loss == again.final_loss);
  }
}

TEST_CASE("slamb_train: SLAMB sends less than a quarter of LAMB's bytes") {
  train::settings chosen = short_run(4);
  chosen.steps = 2 * chosen.local_steps;
  const auto sent = [&](const char* name) { return run(chosen, *train::find_optimizer(name)).curve.back().sent_bytes; };
  CHECK(sent("slamb") < sent("lamb") / 4);
}

TEST_CASE("slamb_train: says which optimizer diverged, and of the others nothing") {
  train::settings chosen = short_run(4);
  chosen.steps = 20;
  chosen.optimizers = {"lamb", "adamw"};
  std::vector<train::outcome> outcomes{run(chosen, *train::find_optimizer("lamb")),
                                       run(chosen, *train::find_optimizer("adamw"))};
  CHECK(outcomes[0].untrained_loss == outcomes[1].untrained_loss);
  CHECK(outcomes[0].untrained_loss == doctest::Approx(std::log(10.0)).epsilon(0.2));
  const auto table = [&] {
    std::ostringstream text;
    train::print_table(text, chosen, outcomes);
    return text.str();
  };
  CHECK(table().find("diverged") == std::string::npos);
  outcomes[1].final_loss = 1e31;
  CHECK(table().find("\nadamw diverged: its final loss, 1e+31, is not below the untrained network's 2.") !=
        std::string::npos);
  CHECK(table().find("lamb diverged") == std::string::npos);
}

TEST_CASE("slamb_train: finds optimizers by name") {
  CHECK(train::find_optimizer("slamb") != nullptr);
  CHECK(train::find_optimizer("no_such_optimizer") == nullptr);
}

TEST_CASE("slamb_train: reports mean and deviation, JSON that reads back, and a row of CSV a step") {
  train::settings chosen = short_run(2);
  chosen.optimizers = {"lamb"};
  std::vector<train::outcome> outcomes(2);
  for (std::size_t i = 0; i < 2; ++i) {
    outcomes[i].optimizer = "lamb";
    outcomes[i].seed = i + 1;
    outcomes[i].test_accuracy = 0.96 + 0.02 * static_cast<double>(i);
    outcomes[i].final_loss = std::nan("");
    outcomes[i].curve = {{2.5, 0}, {0.125, 1000}};
  }
  outcomes[1].statistics.skipped_steps = 3;
  chosen.seeds = 2;
  std::ostringstream table;
  train::print_table(table, chosen, outcomes);
  CHECK(table.str().find("97.00 \u00B1 1.41 %") != std::string::npos);
  CHECK(table.str().find("lamb diverged: its final loss, nan, is not below") != std::string::npos);
  CHECK(table.str().find("lamb, seed 2: all ranks skipped 3 steps") != std::string::npos);
  std::ostringstream csv;
  train::write_csv(csv, outcomes);
  CHECK(csv.str() ==
        "optimizer,seed,step,loss,sent_bytes\nlamb,1,1,2.5,0\nlamb,1,2,0.125,1000\nlamb,2,1,2.5,0\nlamb,2,2,0.125,"
        "1000\n");
  std::ostringstream json;
  train::write_json(json, chosen, data(), outcomes);
  const auto document = nlohmann::json::parse(json.str());
  CHECK(document["settings"]["ranks"] == 2);
  CHECK(document["runs"].size() == 2);
  CHECK(document["runs"][1]["test_accuracy"].get<double>() == outcomes[1].test_accuracy);
  CHECK(document["runs"][0]["final_loss"].is_null());
}
