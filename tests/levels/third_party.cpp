// Headers of other projects: for command lines, documents and benchmarks.
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

namespace {

void count(benchmark::State& state) {
  std::int64_t rounds = 0;
  for (auto each : state) benchmark::DoNotOptimize(rounds += state.range(0));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("prints numbers as JSON");
  std::vector<double> values;
  app.add_option("--values", values, "Numbers")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  std::cout << nlohmann::ordered_json{{"values", values}}.dump(2) << '\n';
  benchmark::RegisterBenchmark("count", count)->Arg(100);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
