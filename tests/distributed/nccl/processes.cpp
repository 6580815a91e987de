// Ranks as processes, as in the examples: one that fails ends all of them. Needs neither NCCL nor a GPU.
#include "../../../examples/common/forked_ranks.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace nccl_processes_tests {
namespace {

constexpr int ranks = 3;

/// A rank whose peer is gone. If it is not ended, the test times out.
[[noreturn]] void wait_for_ever() {
  for (;;) pause();
}

}  // namespace

TEST_CASE("processes: rank 0's value reaches all ranks") {
  const programs::mailbox<long> value(ranks);
  CHECK(programs::run_forked(ranks, [&](int rank) { return value.share(rank, [] { return 42L; }) == 42L ? 0 : 1; }) ==
        0);
}

TEST_CASE("processes: each rank is a separate process") {
  int runs = 0;
  CHECK(programs::run_forked(ranks, [&](int rank) { return ++runs == 1 && rank < ranks ? 0 : 1; }) == 0);
  CHECK(runs == 0);
}

TEST_CASE("processes: the status of a failed rank is that of all, and its peers are ended") {
  for (int failing = 0; failing < ranks; ++failing) {
    CAPTURE(failing);
    const int status = programs::run_forked(ranks, [failing](int rank) {
      if (rank != failing) wait_for_ever();
      return 77;
    });
    CHECK(status == 77);
  }
}

TEST_CASE("processes: a rank that fails after others have ended is a failure") {
  CHECK(programs::run_forked(ranks, [](int rank) {
          if (rank == 1) usleep(100'000);
          return rank == 1 ? 5 : 0;
        }) == 5);
}

TEST_CASE("processes: an exception of a rank ends all with the status 1") {
  CHECK(programs::run_forked(ranks, [](int rank) -> int {
          if (rank == 2) throw std::runtime_error("as it was asked to");
          wait_for_ever();
        }) == 1);
}

TEST_CASE("processes: a rank that is killed ends all with the status 1") {
  CHECK(programs::run_forked(ranks, [](int rank) -> int {
          if (rank == 1) raise(SIGKILL);
          wait_for_ever();
        }) == 1);
}

TEST_CASE("processes: no rank waits for a value that rank 0 does not send") {
  const programs::mailbox<int> value(ranks);
  const auto fails = [&](int rank) { return value.share(rank, []() -> int { throw std::runtime_error("no value"); }); };
  CHECK(programs::run_forked(ranks, fails) == 1);
}

}  // namespace nccl_processes_tests
