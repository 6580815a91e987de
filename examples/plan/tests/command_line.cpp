// Tests of the command line of slamb_plan, and of its output.
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "../command_line.hpp"
#include "../forecast.hpp"
#include "../models.hpp"
#include "../report.hpp"

namespace {

constexpr std::array<std::string_view, 3> known{"lamb", "slamb", "one_bit_lamb"};

plan::settings parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "slamb_plan");
  return plan::parse_command_line(static_cast<int>(arguments.size()), arguments.data(), known).value();
}

void check_refused(const std::vector<const char*>& arguments, const std::string& message) {
  std::string said = "nothing was thrown";
  try {
    parse(arguments);
  } catch (const plan::usage_error& error) {
    said = error.what();
  }
  CAPTURE(said);
  CAPTURE(message);
  CHECK(said.find(message) != std::string::npos);
}

}  // namespace

TEST_CASE("slamb_plan: plans BERT-Large with all optimizers on 64 ranks by default") {
  const plan::settings chosen = parse({});
  CHECK(chosen.model == "bert-large");
  CHECK(chosen.optimizers == std::vector<std::string>{"lamb", "slamb", "one_bit_lamb"});
  CHECK(chosen.ranks == 64);
  CHECK(chosen.steps == 118'000);
  CHECK(chosen.warmup() == 19'690);
  CHECK(chosen.freeze() == 12'500);
  CHECK(chosen.network.bandwidth == 3.125e9);
  CHECK(chosen.network.latency == doctest::Approx(20e-6));
  CHECK(chosen.network.node_bandwidth == 300e9);
  CHECK(chosen.memory_bandwidth == 1.5e12);
  CHECK(chosen.compute_seconds == doctest::Approx(0.2));
  CHECK(parse({"--steps", "5993"}).warmup() == 1000);
  CHECK(parse({"--steps", "1"}).warmup() == 1);
}

TEST_CASE("slamb_plan: the types of a model change the memory traffic and nothing that is sent") {
  const auto planned = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.end(), {"--steps", "10", "--optimizer", "lamb"});
    const plan::settings chosen = parse(arguments);
    const std::vector<slamb::plan::tensor_shape> tensors{{.size = 1000}};
    return plan::forecast_all(tensors, chosen).front().moved;
  };
  const plan::outline floats = planned({});
  const auto per_element = [&](const std::vector<const char*>& arguments) {
    const plan::outline moved = planned(arguments);
    CHECK(moved.traffic.total().sent_bytes == floats.traffic.total().sent_bytes);
    return moved.memory_bytes / (1000.0 * 10.0);
  };
  // Gathered, 4 + 4 bytes or 2 + 4; then p, g, m, v and m, v; then p, m, v and p.
  CHECK(per_element({}) == doctest::Approx(8 + 24 + 16));
  CHECK(per_element({"--precision", "bf16"}) == doctest::Approx(6 + 24 + 18));
  CHECK(per_element({"--precision", "fp16", "--rounding", "stochastic"}) == doctest::Approx(6 + 22 + 12));
  CHECK(per_element({"--moments", "bf16-momentum"}) == doctest::Approx(8 + 24 - 4 + 16 - 2));
  CHECK(per_element({"--moments", "8-bit"}) == doctest::Approx(48 - 6 * (3 - 1.0 / 64)));
  check_refused({"--rounding", "stochastic"}, "--rounding: --precision float32 stores no numbers of 16 bits");
  check_refused({"--precision", "int8"}, "--precision");
  check_refused({"--moments", "4-bit"}, "--moments");
}

TEST_CASE("slamb_plan: sets every option from the command line") {
  const plan::settings chosen = parse({"--shapes",
                                       "s.txt",
                                       "--optimizer",
                                       "slamb,lamb",
                                       "--steps",
                                       "50",
                                       "--ranks",
                                       "7",
                                       "--value-bytes=2",
                                       "--k",
                                       "0.25",
                                       "--local-steps",
                                       "9",
                                       "--warmup-steps",
                                       "5",
                                       "--freeze-step",
                                       "0",
                                       "--variance-update-scaler",
                                       "3",
                                       "--local-step-scaler",
                                       "4",
                                       "--local-step-clipper",
                                       "8",
                                       "--bandwidth",
                                       "100",
                                       "--latency",
                                       "5",
                                       "--ranks-per-node",
                                       "2",
                                       "--node-bandwidth",
                                       "50",
                                       "--memory-bandwidth",
                                       "900",
                                       "--compute-ms",
                                       "0",
                                       "--json",
                                       "j"});
  CHECK(chosen.shapes == "s.txt");
  CHECK(chosen.optimizers == std::vector<std::string>{"slamb", "lamb"});
  CHECK(chosen.steps == 50);
  CHECK(chosen.ranks == 7);
  CHECK(chosen.value_bytes == 2);
  CHECK(chosen.k == 0.25);
  CHECK(chosen.local_steps == 9);
  CHECK(chosen.warmup() == 5);
  CHECK(chosen.freeze() == 0);
  CHECK(chosen.variance_update_scaler == 3);
  CHECK(chosen.local_step_scaler == 4);
  CHECK(chosen.local_step_clipper == 8);
  CHECK(chosen.network.bandwidth == 12.5e9);
  CHECK(chosen.network.latency == doctest::Approx(5e-6));
  CHECK(chosen.network.ranks_per_node == 2);
  CHECK(chosen.network.node_bandwidth == 50e9);
  CHECK(chosen.memory_bandwidth == 900e9);
  CHECK(chosen.compute_seconds == 0.0);
  CHECK(chosen.json == "j");
}

TEST_CASE("slamb_plan: an error names the option, the value and the range") {
  check_refused({}, "nothing was thrown");
  check_refused({"--model", "bert"}, "--model: 'bert' is not one of resnet-110, swin-b, bert-large");
  check_refused({"--model", "swin-b", "--shapes", "s.txt"}, "excludes");
  check_refused({"--optimizer", "sgd"}, "--optimizer: 'sgd' is not one of lamb, slamb, one_bit_lamb");
  check_refused({"--optimizer", "lamb,slamb,lamb"}, "--optimizer: 'lamb' is listed twice");
  check_refused({"--steps", "0"}, "--steps: '0' is not an integer in [1, 1000000]");
  check_refused({"--ranks", "0"}, "--ranks: '0' is not an integer in [1, 1000000]");
  check_refused({"--value-bytes", "3"}, "--value-bytes: '3' is not one of 2, 4");
  check_refused({"--k", "0"}, "--k: '0' is not a number in [0.0001, 1]");
  check_refused({"--warmup-steps", "0"}, "--warmup-steps: '0' is not an integer in [1, 1000000]");
  check_refused({"--bandwidth", "0"}, "--bandwidth: '0' is not a number in (0, 1e9]");
  check_refused({"--latency", "-1"}, "--latency: '-1' is not a number in [0, 1e9]");
  check_refused({"--compute-ms", "nan"}, "--compute-ms: 'nan' is not a number");
  check_refused({"--ranks-per-node", "0"}, "--ranks-per-node: '0' is not an integer");
  check_refused({"--json", ""}, "--json");
  check_refused({"--speed", "9"}, "--speed");
}

TEST_CASE("slamb_plan: the table has a line for each optimizer, and JSON the same numbers") {
  const plan::settings chosen = parse({"--steps", "200", "--optimizer", "one_bit_lamb,lamb"});
  const std::vector<slamb::plan::tensor_shape> tensors = plan::tensors_of_model("resnet-110");
  const std::vector<plan::forecast> forecasts = plan::forecast_all(tensors, chosen);
  std::ostringstream table, document;
  plan::print_settings(table, chosen, tensors);
  plan::print_table(table, chosen, forecasts);
  CHECK(table.str().find("1,727,962 parameters in 329 tensors; 200 steps on 64 ranks") != std::string::npos);
  CHECK(table.str().find("\none_bit_lamb ") < table.str().find("\nlamb "));
  plan::write_json(document, chosen, tensors, forecasts);
  const nlohmann::json read = nlohmann::json::parse(document.str());
  CHECK(read["settings"]["parameters"] == 1'727'962);
  REQUIRE(read["plans"].size() == 2);
  CHECK(read["plans"][1]["optimizer"] == "lamb");
  CHECK(read["plans"][1]["sent_bytes"] == forecasts[1].moved.traffic.total().sent_bytes);
  CHECK(read["plans"][1]["collectives"]["all_reduce"]["rounds"] == 200);
  CHECK(read["plans"][1]["faster_than_fp32"]["beats"] == "never");
}

TEST_CASE("slamb_plan: a single rank sends nothing, and no ratio is printed") {
  const plan::settings chosen = parse({"--steps", "10", "--ranks", "1", "--optimizer", "lamb,slamb"});
  const std::vector<slamb::plan::tensor_shape> tensors{{1000}};
  const std::vector<plan::forecast> forecasts = plan::forecast_all(tensors, chosen);
  for (const plan::forecast& f : forecasts) CHECK(f.moved.traffic.total().rounds == 0);
  std::ostringstream table, document;
  plan::print_table(table, chosen, forecasts);
  CHECK(table.str().find("nan") == std::string::npos);
  plan::write_json(document, chosen, tensors, forecasts);
  CHECK(nlohmann::json::parse(document.str())["plans"][0]["times_less_than_fp16"].is_null());
}

TEST_CASE("slamb_plan: bytes have three digits and a unit") {
  CHECK(plan::bytes_text(0) == "0 B");
  CHECK(plan::bytes_text(999) == "999 B");
  CHECK(plan::bytes_text(1000) == "1.00 kB");
  CHECK(plan::bytes_text(9.999e6) == "10.0 MB");
  CHECK(plan::bytes_text(99.99e6) == "100 MB");
  CHECK(plan::bytes_text(999.9e6) == "1.00 GB");
  CHECK(plan::bytes_text(2.647e9) == "2.65 GB");
  CHECK(plan::grouped(0) == "0");
  CHECK(plan::grouped(999) == "999");
  CHECK(plan::grouped(1000) == "1,000");
  CHECK(plan::grouped(336'232'258) == "336,232,258");
}
