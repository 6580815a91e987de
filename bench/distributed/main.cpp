// slamb_bench_mpi: the time of the optimizers' steps over processes that mpirun starts. Exit status: 0; 1 for what went wrong
// at work; 2 for a wrong command line.
#include <csignal>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "../../examples/train/output_file.hpp"
#include "command_line.hpp"
#include "measurement.hpp"
#include "optimizers.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "tensors.hpp"

namespace {

using namespace bench::distributed;

struct place {
  int rank = 0;
  int size = 1;
  bool has_started = false;  ///< all ranks have come to where they work together
  bool start_failed = false;
  bool speaks() const noexcept { return rank == 0; }

  /// Called by all ranks, once, each with its exit status so far. Returns the largest.
  int start(int status) {
    has_started = true;
    MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    start_failed = status != 0;
    return status;
  }
};

void require_written() {
  if (!std::cout.flush()) throw train::output_error("the standard output could not be written");
}

results measure_all(const settings& chosen, const place& here, const std::vector<bench::tensor_shape>& shapes) {
  bench::model model(shapes);
  std::vector<slamb::tensor_shape> tensors;
  for (const bench::tensor_shape& each : shapes)
    tensors.push_back({.size = each.size(), .dimensions = each.dimensions()});
  const scene at{chosen, model, tensors, here.rank, here.size};
  const auto measured = [&](const std::string& name) {
    if (here.speaks()) std::cerr << "slamb_bench_mpi: " << name << '\n';
    return measure_optimizer(at, name);
  };

  results all{.ranks = here.size, .tensors = shapes.size()};
  all.lamb_first = measured("lamb");
  for (const std::string& name : chosen.optimizers)
    if (name != "lamb") all.others.push_back(measured(name));
  all.lamb_last = measured("lamb");
  return all;
}

// Only the first rank writes. Returns an exit status, which is not 0 if another rank could not start.
int run(const settings& chosen, place& here) {
  std::optional<train::output_file> json;
  if (here.speaks() && !chosen.json.empty()) json.emplace("--json", chosen.json);
  if (const int status = here.start(0); status != 0) return status;

  const std::vector<bench::tensor_shape> shapes = tensors_of(chosen.parameters);
  print_settings(std::cout, chosen, here.size, shapes.size());
  require_written();
  const results all = measure_all(chosen, here, shapes);
  if (!here.speaks()) return 0;
  print_table(std::cout, chosen, all);
  if (json) json->write([&](std::ostream& out) { write_json(out, chosen, all); });
  require_written();
  return 0;
}

int run_program(int argc, char** argv, place& here) {
  try {
    try {
      return run(parse_command_line(argc, argv, optimizer_names()), here);
    } catch (const CLI::Success&) {  // help or the version was asked for
      require_written();
      return here.start(0);
    }
  } catch (const usage_error& error) {
    if (here.speaks())
      std::cerr << "slamb_bench_mpi: " << error.what() << "\nslamb_bench_mpi --help says the options\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "slamb_bench_mpi: rank " << here.rank << " of " << here.size << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace

// What goes wrong before the work is known to all ranks, and they end as usual. Later it may be of one alone: that ends all.
int main(int argc, char** argv) try {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error to report, not the end of the process
  slamb::mpi_environment mpi(argc, argv);
  place here;
  MPI_Comm_rank(MPI_COMM_WORLD, &here.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &here.size);
  static std::ofstream nowhere("/dev/null");
  if (!here.speaks()) std::cout.rdbuf(nowhere.rdbuf());
  const int status = run_program(argc, argv, here);
  if (status != 0 && here.has_started && !here.start_failed) MPI_Abort(MPI_COMM_WORLD, status);
  if (status != 0 && !here.has_started) here.start(status);
  return status;
} catch (const std::exception& error) {
  std::cerr << "slamb_bench_mpi: " << error.what() << '\n';
  return 1;
}
