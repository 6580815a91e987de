#include "processes.hpp"

#include <array>
#include <cstdlib>
#include <stdexcept>

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

// Every rank receives the other ranks' hashes and losses.
std::vector<outcome> run_processes(int ranks, const rank_body& body) {
  slamb::mpi_communicator communicator;
  std::vector<outcome> outcomes(static_cast<std::size_t>(ranks));
  const auto own = static_cast<std::size_t>(communicator.rank());
  outcomes[own] = body(rank_communicator(slamb::mpi_communicator()));

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

std::vector<outcome> run_processes(int /*ranks*/, const rank_body& /*body*/) {
  throw std::logic_error("run_processes: built without MPI");
}

#endif

}  // namespace train
