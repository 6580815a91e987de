// slamb_bench_mpi: the time of the optimizers' steps over MPI processes. Exit status: 0; 1 for an error at work; 2 for a wrong
// command line.
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "../../examples/common/mpi_processes.hpp"
#include "../../examples/common/output_file.hpp"
#include "../../examples/common/program.hpp"
#include "command_line.hpp"
#include "measurement.hpp"
#include "optimizers.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "tensors.hpp"

namespace {

using namespace bench::distributed;

results measure_all(const settings& chosen, const programs::processes& here,
                    const std::vector<bench::tensor_shape>& shapes) {
  bench::model model(shapes);
  std::vector<slamb::plan::tensor_shape> tensors;
  for (const bench::tensor_shape& each : shapes)
    tensors.push_back({.size = each.size(), .dimensions = each.dimensions()});
  const scene at{chosen, model, tensors, here.rank(), here.size()};
  const auto measured = [&](const std::string& name) {
    if (here.rank() == 0) std::cerr << "slamb_bench_mpi: " << name << '\n';
    return measure_optimizer(at, name);
  };

  results all{.ranks = here.size(), .tensors = shapes.size()};
  all.lamb_first = measured("lamb");
  for (const std::string& name : chosen.optimizers)
    if (name != "lamb") all.others.push_back(measured(name));
  all.lamb_last = measured("lamb");
  return all;
}

// Measures; only the first rank writes. Returns an exit status, which is not 0 if another rank could not start.
int run(const settings& chosen, programs::processes& here) {
  std::optional<programs::output_file> json;
  if (here.rank() == 0 && !chosen.json.empty()) json.emplace("--json", chosen.json);
  if (const int status = here.meet(0); status != 0) return status;

  const std::vector<bench::tensor_shape> shapes = tensors_of(chosen.parameters);
  print_settings(std::cout, chosen, here.size(), shapes.size());
  programs::require_written();
  const results all = measure_all(chosen, here, shapes);
  if (here.rank() != 0) return 0;
  print_table(std::cout, chosen, all);
  if (json) json->write([&](std::ostream& out) { write_json(out, chosen, all); });
  programs::require_written();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::exit_status("slamb_bench_mpi", [&] {
    programs::mpi_processes all(argc, argv);
    const std::string at = "rank " + std::to_string(all.rank()) + " of " + std::to_string(all.size()) + ": ";
    return all.run([&] {
      const auto measure = [&] {
        if (const auto chosen = parse_command_line(argc, argv, optimizer_names())) return run(*chosen, all);
        programs::require_written();  // help or the version
        return all.meet(0);
      };
      return programs::exit_status("slamb_bench_mpi", measure, at, all.rank() == 0);
    });
  });
}
