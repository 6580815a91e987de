// slamb_bench_shards_mpi: what a shard group adds to a step, over the processes that mpirun starts, each of which has a shard. Exit
// status: 0; 1 for an error at work; 2 for a wrong command line.
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <iostream>
#include <optional>
#include <thread>

#include "../../examples/common/mpi_processes.hpp"
#include "../../examples/common/program.hpp"
#include "../workbench.hpp"
#include "measurement.hpp"
#include "report.hpp"
#include "settings.hpp"
#include "slamb/mpi.hpp"

namespace {

using namespace bench::shards;

struct all_processes {
  using communicator_type = slamb::mpi_communicator;

  // Leaves the processors to ranks that still work: MPI's own barrier polls without a pause.
  static void meet() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  static communicator_type communicator() { return communicator_type(); }
};

int run(int argc, char** argv, programs::processes& here) {
  const std::optional<settings> chosen = parse_command_line(argc, argv, "slamb_bench_shards_mpi", here.size());
  if (chosen) {
    constexpr std::size_t bytes = 4 * (2 + 3 * 2);  // p and g, and m and v of three optimizers
    bench::workbench::require_memory(bench::detail::elements_of(bench::bert_large_tensors()) / chosen->smaller * bytes);
  }
  const double load = load_average();
  if (const int status = here.meet(0); status != 0) return status;
  if (chosen) {
    all_processes ranks;
    const results all = measure(*chosen, ranks);
    print(std::cout, *chosen, "processes", load, all);
  }
  programs::require_written();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return programs::exit_status("slamb_bench_shards_mpi", [&] {
    programs::mpi_processes all(argc, argv);
    return all.run([&] {
      return programs::exit_status(
          "slamb_bench_shards_mpi", [&] { return run(argc, argv, all); }, "", all.rank() == 0);
    });
  });
}
