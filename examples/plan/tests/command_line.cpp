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
  CHECK(chosen.shards == 1);
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

TEST_CASE(
    "slamb_plan: ranks of a quarter of the model send, store and read a quarter, and tell the other shards little") {
  const std::vector<slamb::plan::tensor_shape> tensors = plan::tensors_of_model("resnet-110");
  for (const std::string_view name : plan::optimizer_names()) {
    CAPTURE(name);
    if (plan::is_partitioned(name)) continue;  // takes whole tensors
    plan::settings chosen = parse({"--steps", "10", "--ranks", "16", "--warmup-steps", "3", "--local-steps", "5"});
    chosen.optimizers = {std::string(name)};
    const plan::forecast whole = plan::forecast_all(tensors, chosen).front();
    chosen.shards = 4;
    const plan::forecast quarter = plan::forecast_all(tensors, chosen).front();
    const auto sent = [](const plan::forecast& f) { return static_cast<double>(f.moved.traffic.total().sent_bytes); };
    CHECK(sent(quarter) / sent(whole) == doctest::Approx(0.25).epsilon(0.02));
    CHECK(quarter.moved.traffic.total().rounds == whole.moved.traffic.total().rounds);
    CHECK(quarter.less_than_single == doctest::Approx(whole.less_than_single).epsilon(0.02));
    CHECK(quarter.model_bytes / whole.model_bytes == doctest::Approx(0.25).epsilon(0.001));
    CHECK(quarter.moved.memory_bytes / whole.moved.memory_bytes == doctest::Approx(0.25).epsilon(0.02));
    CHECK(quarter.moved.optimizer_bytes < 0.3 * static_cast<double>(whole.moved.optimizer_bytes));
    CHECK(quarter.moved.launches > whole.moved.launches);
    CHECK(whole.moved.in_shards.rounds == 0);
    CHECK(whole.shards_seconds == 0.0);
    CHECK(quarter.moved.in_shards.rounds >= 10);
    CHECK(quarter.moved.in_shards.rounds <= 20);
  }
}

TEST_CASE("slamb_plan: the memory of a rank is of parameters, gradients and the optimizer, as they are stored") {
  const std::vector<slamb::plan::tensor_shape> tensors{{.size = 1'000'000}};
  const auto per_element = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.end(), {"--steps", "1", "--ranks", "1", "--optimizer", "lamb"});
    const plan::forecast f = plan::forecast_all(tensors, parse(arguments)).front();
    return (f.model_bytes + static_cast<double>(f.moved.optimizer_bytes)) / 1e6;
  };
  CHECK(per_element({}) == doctest::Approx(4 + 4 + 8).epsilon(0.001));
  CHECK(per_element({"--shards", "2"}) == doctest::Approx(8).epsilon(0.001));
  CHECK(per_element({"--precision", "bf16"}) == doctest::Approx(2 + 2 + 8 + 4).epsilon(0.001));
  CHECK(per_element({"--precision", "bf16", "--rounding", "stochastic", "--moments", "8-bit"}) ==
        doctest::Approx(2 + 2 + 2 * (1 + 1.0 / 64)).epsilon(0.002));
}

TEST_CASE("slamb_plan: with a partition a rank has the state of its part, and sends floats or codes") {
  const std::vector<slamb::plan::tensor_shape> tensors{{.size = 1'000'000}};
  const auto planned = [&](const char* name, std::vector<const char*> arguments) {
    arguments.insert(arguments.end(), {"--steps", "10", "--ranks", "4"});
    plan::settings chosen = parse(arguments);
    chosen.optimizers = {name};
    return plan::forecast_all(tensors, chosen).front();
  };
  const auto optimizer_bytes = [&](const char* name, const std::vector<const char*>& arguments) {
    return static_cast<double>(planned(name, arguments).moved.optimizer_bytes) / 1e6;
  };
  // 8 bytes of moments, and 4 of exact parameters or master copies, of a quarter; then the buffers and the worker error.
  CHECK(optimizer_bytes("lamb+partition", {}) == doctest::Approx(8.0 / 4 + 8).epsilon(0.003));
  CHECK(optimizer_bytes("lamb+partition", {"--precision", "bf16"}) == doctest::Approx(12.0 / 4 + 8).epsilon(0.003));
  CHECK(optimizer_bytes("lamb+partition", {"--precision", "bf16", "--rounding", "stochastic"}) ==
        doctest::Approx(8.0 / 4 + 8).epsilon(0.003));
  const double of_codes = 12.0 / 4 + 4 + 1 + 1;
  CHECK(optimizer_bytes("lamb+partition+int8", {}) == doctest::Approx(of_codes).epsilon(0.01));
  CHECK(optimizer_bytes("lamb+partition+int8", {"--precision", "bf16"}) == doctest::Approx(of_codes).epsilon(0.01));
  CHECK(optimizer_bytes("lamb+partition", {"--ranks-per-node", "1", "--moments", "8-bit"}) ==
        doctest::Approx(2 * (1 + 1.0 / 64) / 4 + 8).epsilon(0.003));

  const auto sent = [&](const char* name) {
    return static_cast<double>(planned(name, {}).moved.traffic.total().sent_bytes) / 10.0 / 1e6;
  };
  CHECK(sent("lamb+partition") == doctest::Approx(8.0 * 3 / 4).epsilon(0.001));
  CHECK(sent("lamb+partition+int8") == doctest::Approx((2.0 + 1.0 / 32 + 1.0 / 32) * 3 / 4).epsilon(0.05));
}

TEST_CASE("slamb_plan: optimizers with a partition are planned without shards") {
  constexpr std::array<std::string_view, 2> names{"lamb", "lamb+partition"};
  const auto optimizers = [&](const std::vector<const char*>& arguments) {
    return plan::parse_command_line(static_cast<int>(arguments.size()), arguments.data(), names).value().optimizers;
  };
  CHECK(optimizers({"slamb_plan"}) == std::vector<std::string>{"lamb", "lamb+partition"});
  CHECK(optimizers({"slamb_plan", "--shards", "2"}) == std::vector<std::string>{"lamb"});
  CHECK_THROWS_WITH_AS(optimizers({"slamb_plan", "--shards", "2", "--optimizer", "lamb+partition"}),
                       "--shards: --optimizer lamb+partition cuts whole tensors itself; plan it without --shards",
                       plan::usage_error);
}

TEST_CASE("slamb_plan: exchanges of all shards share the links of nodes") {
  // A node of 8 ranks has all shards of 8, 4, 2 or 1 replicas: its link carries the same bytes.
  const std::vector<slamb::plan::tensor_shape> tensors{{.size = 8'000'000}};
  const auto exchange = [&](const char* ranks, const char* shards) {
    const plan::settings chosen =
        parse({"--ranks", ranks, "--shards", shards, "--latency", "0", "--optimizer", "lamb"});
    return plan::forecast_all(tensors, chosen).front().exchange_seconds;
  };
  const double gradient = 4.0 * 8e6;
  CHECK(exchange("64", "1") == doctest::Approx(2 * gradient * 63 / 64 / 3.125e9));
  CHECK(exchange("16", "4") == doctest::Approx(2 * gradient * 15 / 16 / 3.125e9));
  CHECK(exchange("8", "8") == doctest::Approx(2 * gradient * 7 / 8 / 3.125e9));
  CHECK(exchange("1", "8") == 0.0);
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
                                       "--shards",
                                       "2",
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
  CHECK(chosen.shards == 2);
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
  check_refused({"--shards", "0"}, "--shards: '0' is not an integer in [1, 1024]");
  check_refused(
      {"--shards", "3"},
      "--shards: 3 does not divide --ranks-per-node, which is 8: the ranks that hold a model together share a "
      "node");
  check_refused({"--shards", "4", "--ranks-per-node", "2"}, "--shards: 4 does not divide --ranks-per-node, which is 2");
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

TEST_CASE("slamb_plan: the output says how many ranks hold a shard, and what is counted within a shard group") {
  const plan::settings chosen = parse({"--steps", "10", "--ranks", "4", "--shards", "2", "--optimizer", "lamb"});
  const std::vector<slamb::plan::tensor_shape> tensors{{.size = 1001}, {.size = 7, .dimensions = 1}};
  const std::vector<plan::forecast> forecasts = plan::forecast_all(tensors, chosen);
  std::ostringstream text, document;
  plan::print_settings(text, chosen, tensors);
  plan::print_table(text, chosen, forecasts);
  CHECK(text.str().find("; 10 steps on 8 ranks: 4 that hold each of 2 shards\n") != std::string::npos);
  CHECK(text.str().find("(sent: by one rank, to the ranks that hold the same shard;") != std::string::npos);
  CHECK(text.str().find("what the model sends them is not counted") != std::string::npos);
  CHECK(text.str().find("a rank has 1/2 of each tensor, rounded up") != std::string::npos);
  plan::write_json(document, chosen, tensors, forecasts);
  const nlohmann::json read = nlohmann::json::parse(document.str());
  CHECK(read["settings"]["shards"] == 2);
  CHECK(read["plans"][0]["model_bytes_of_rank"] == 8 * (501 + 4));
  // Two sums of each of two tensors, and 16 bytes of the skip: each rank sends its half of what both gather.
  CHECK(read["plans"][0]["in_shards"]["rounds"] == 20);
  CHECK(read["plans"][0]["in_shards"]["sent_bytes"] == 10 * (2 * 2 * 8 + 16));

  std::ostringstream whole;
  const plan::settings alone = parse({"--steps", "10", "--optimizer", "lamb"});
  plan::print_table(whole, alone, plan::forecast_all(tensors, alone));
  CHECK(whole.str().find("to the network or inside its node") != std::string::npos);
  CHECK(whole.str().find("other shards") == std::string::npos);
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
