#include "processes.hpp"

#include <array>
#include <cstdlib>
#include <slamb/communicator/sharded_communicator.hpp>
#include <stdexcept>
#include <utility>

#ifdef SLAMB_TRAIN_MPI
#include "../common/mpi_processes.hpp"
#endif

namespace train {

namespace {

// Environment variables that launchers set for their processes: Open MPI, MPICH and derivatives, MVAPICH, Slurm.
bool are_started() {
  constexpr std::array names{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK"};
  for (const char* name : names) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace

#ifdef SLAMB_TRAIN_MPI

std::unique_ptr<programs::processes> find_processes(int& argc, char**& argv) {
  if (!are_started()) return nullptr;
  return std::make_unique<programs::mpi_processes>(argc, argv);
}

namespace {

// The processes with the same `part`, in their order.
slamb::mpi_communicator join(int part) {
  MPI_Comm joined = MPI_COMM_NULL;
  int process = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_split(MPI_COMM_WORLD, part, process, &joined);
  slamb::mpi_communicator copy(joined);
  MPI_Comm_free(&joined);
  return copy;
}

// A shard group is consecutive processes.
rank_communicator communicator_of(const rank_grid& grid, int process) {
  if (grid.shards == 1) return rank_communicator(slamb::mpi_communicator());
  slamb::mpi_communicator of_shard = join(process % grid.shards);
  return rank_communicator(slamb::sharded_communicator(std::move(of_shard), join(process / grid.shards)));
}

}  // namespace

// Every rank receives the other ranks' hashes and losses.
std::vector<outcome> run_processes(const rank_grid& grid, const rank_body& body) {
  slamb::mpi_communicator communicator;
  std::vector<outcome> outcomes(static_cast<std::size_t>(grid.size()));
  const auto own = static_cast<std::size_t>(communicator.rank());
  outcomes[own] = body(communicator_of(grid, communicator.rank()));

  const std::uint64_t hash = outcomes[own].parameter_hash;
  std::vector<std::uint64_t> hashes(outcomes.size());
  communicator.all_gather(std::span(&hash, 1), std::span(hashes), slamb::host_stream{});
  std::vector<double> losses;
  for (const curve_point& point : outcomes[own].curve) losses.push_back(point.loss);
  std::vector<double> all(losses.size() * outcomes.size());
  communicator.all_gather(std::span<const double>(losses), std::span(all), slamb::host_stream{});
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    outcomes[r].parameter_hash = hashes[r];
    outcomes[r].curve.resize(losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) outcomes[r].curve[i].loss = all[r * losses.size() + i];
  }
  return outcomes;
}

#else

std::unique_ptr<programs::processes> find_processes(int& /*argc*/, char**& /*argv*/) {
  if (!are_started()) return nullptr;
  throw std::runtime_error(
      "it was started as one of several processes, but it was built without MPI, so each process would do all the "
      "work; configure with -DSLAMB_MPI=ON, or start one process");
}

std::vector<outcome> run_processes(const rank_grid& /*grid*/, const rank_body& /*body*/) {
  throw std::logic_error("run_processes: built without MPI");
}

#endif

}  // namespace train
