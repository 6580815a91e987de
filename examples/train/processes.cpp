#include "processes.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>

#ifdef SLAMB_TRAIN_MPI
#include <slamb/mpi.hpp>
#endif

namespace train {

namespace {

// What launchers tell the processes that they start: Open MPI, MPICH and its kin, MVAPICH, Slurm.
bool are_started() {
  constexpr std::array names{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK"};
  for (const char* name : names) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

#ifdef SLAMB_TRAIN_MPI

class mpi_processes final : public processes {
 public:
  mpi_processes(int& argc, char**& argv) : environment_(argc, argv) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }

  int meet(int status) override {
    have_met_ = true;
    std::vector<int> all(static_cast<std::size_t>(size()));
    ranks_.all_gather(std::span<const int>(&status, 1), std::span(all), slamb::host_stream{});
    const int largest = *std::ranges::max_element(all);
    start_failed_ = largest != 0;
    return largest;
  }
  bool have_met() const override { return have_met_; }
  bool start_failed() const override { return start_failed_; }

  rank_runner runner() override {
    return [this](int /*ranks*/, const rank_body& body) {
      const auto own = static_cast<std::size_t>(rank());
      std::vector<outcome> outcomes(static_cast<std::size_t>(size()));
      outcomes[own] = body(rank_communicator(slamb::mpi_communicator()));
      share(outcomes, outcomes[own]);
      return outcomes;
    };
  }

  [[noreturn]] void end_all(int status) override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::abort();
  }

 private:
  // Every rank gets to know the others' hashes and losses.
  void share(std::vector<outcome>& outcomes, const outcome& own) {
    std::vector<std::uint64_t> hashes(outcomes.size());
    ranks_.all_gather(std::span(&own.parameter_hash, 1), std::span(hashes), slamb::host_stream{});
    std::vector<double> losses;
    for (const curve_point& point : own.curve) losses.push_back(point.loss);
    std::vector<double> all(losses.size() * outcomes.size());
    ranks_.all_gather(std::span<const double>(losses), std::span(all), slamb::host_stream{});
    for (std::size_t r = 0; r < outcomes.size(); ++r) {
      outcomes[r].parameter_hash = hashes[r];
      outcomes[r].curve.resize(losses.size());
      for (std::size_t i = 0; i < losses.size(); ++i) outcomes[r].curve[i].loss = all[r * losses.size() + i];
    }
  }

  slamb::mpi_environment environment_;
  slamb::mpi_communicator ranks_;
  bool have_met_ = false;
  bool start_failed_ = false;
};

#endif

}  // namespace

std::unique_ptr<processes> find_processes([[maybe_unused]] int& argc, [[maybe_unused]] char**& argv) {
  if (!are_started()) return nullptr;
#ifdef SLAMB_TRAIN_MPI
  return std::make_unique<mpi_processes>(argc, argv);
#else
  throw std::runtime_error(
      "it was started as one of several processes, but built without MPI, so that each of them would do the work of "
      "all: "
      "configure with -DSLAMB_MPI=ON, or start it alone");
#endif
}

}  // namespace train
